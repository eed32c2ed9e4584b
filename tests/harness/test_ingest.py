"""A log from elsewhere becomes a run like our own: once, without torch, and only if there is something in it."""

from __future__ import annotations

import gzip
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from harness.ingest import main
from harness.rundir import RunDir, find_runs
from tests.conftest import ROOT, environment

HEAD = (
    "[rank0]:[titan] 2026-10-20 10:11:00,000 - root - INFO - torchtitan version: 0.2.2 (0.0.0 means x).\n"
    "[rank0]:[titan] 2026-10-20 10:11:01,000 - root - INFO - Building device mesh with parallelism: "
    "pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1\n"
    "[rank0]:[titan] 2026-10-20 10:11:02,000 - root - INFO - Model qwen3 4B size: 4,022,468,096 total parameters\n"
    "[rank0]:[titan] 2026-10-20 10:11:03,000 - root - INFO - Trainer is initialized with local batch size 1, "
    "global batch size 8, gradient accumulation steps 1, sequence length 4096, total steps 10 (warmup 2)\n"
    "[rank0]:[titan] 2026-10-20 10:11:04,000 - root - INFO - Training starts at step 1\n"
)


def step(number: int, second: float, tps: int) -> str:
    return (
        f"[rank0]:[titan] 2026-10-20 10:{11 + int(second) // 60:02}:{second % 60:06.3f} - root - INFO - ".replace(
            ".", ","
        )
        + f"step: {number:2}  loss: {12.5 - number / 10:8.5f}  grad_norm:  1.0000  memory: 20.00GiB(25.00%)  "
        f"tps: {tps:,}  tflops: 100.00  mfu: 10.00%\n"
    )


def log(steps: int = 10, end: str = "Training completed") -> str:
    """Step 1 takes 50 s, the others 4.096 s: 4,096 tokens per rank and step."""
    lines = [step(1, 54.0, 82)] + [step(n, 54 + 4.096 * (n - 1), 1000) for n in range(2, steps + 1)]
    last = f"[rank0]:[titan] 2026-10-20 10:13:00,000 - root - INFO - {end}\n" if end else ""
    return HEAD + "".join(lines) + last


def adopt(tmp_path: Path, text: str, *arguments: str, name: str = "their.log") -> int:
    (tmp_path / name).write_text(text)
    return main([str(tmp_path / name), "--runs", str(tmp_path / "runs"), "--no-tracking", *arguments])


def only(tmp_path: Path) -> RunDir:
    (run,) = find_runs(tmp_path / "runs")
    return run


def test_numbers_of_a_full_scale_log(tmp_path: Path) -> None:
    settings = [
        "path=native_4b",
        "kernel=nki_rope",
        "replicate=2",
        "chip=trn2",
        "lnc=2",
        "chips=2",
        "price_per_hour=36",
    ]
    assert adopt(tmp_path, log(), *(word for pair in settings for word in ("--set", pair))) == 0
    run = only(tmp_path)
    status, summary, config = run.status(), run.summary(), run.config()
    assert (status.state, run.manifest()["source"]) == ("finished", "ingested")
    assert (config["path"]["name"], config["kernel"]["name"], config["replicate"]) == ("native_4b", "nki_rope", 2)
    assert (summary["steps"], summary["warmup_steps"], summary["phase"]) == (10, 1, "steady")
    assert summary["steady"]["step_s_median"] == pytest.approx(4.096, rel=1e-3)
    assert summary["steady"]["tokens_per_s"] == pytest.approx(8000, rel=1e-3)
    assert summary["steady"]["tps_per_chip"] == pytest.approx(4000, rel=1e-3)
    # 6 x 4,022,468,096 parameters + 12 x 36 layers x 32 heads x 128 x 4096 tokens, at 1000 tokens/s of 166.75 TFLOP/s
    assert summary["steady"]["mfu"] == pytest.approx(
        100 * 1000 * (6 * 4_022_468_096 + 12 * 36 * 32 * 128 * 4096) / 166.75e12, rel=1e-2
    )
    assert summary["cost"]["per_million_steady_tokens"] == pytest.approx(36 / 3600 / 8000 * 1e6, rel=1e-3)
    assert [row["step"] for row in run.rows()] == list(range(1, 11))
    assert run.file("train.log").read_text() == log()


def test_same_log_is_the_same_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert adopt(tmp_path, log(), "--set", "path=native_4b") == 0
    first = only(tmp_path).path
    assert adopt(tmp_path, log(), "--set", "path=native_4b", name="copy.log") == 0
    assert "was adopted before" in capsys.readouterr().out
    assert only(tmp_path).path == first
    with gzip.open(tmp_path / "their.log.gz", "wt") as file:
        file.write(log())
    assert main([str(tmp_path / "their.log.gz"), "--runs", str(tmp_path / "runs"), "--no-tracking"]) == 0
    assert only(tmp_path).path == first


def test_same_log_under_other_settings_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adopt(tmp_path, log(), "--set", "kernel=baseline")
    assert adopt(tmp_path, log(), "--set", "kernel=nki_rope") == 2
    assert "remove it to adopt it anew" in capsys.readouterr().err
    assert only(tmp_path).config()["kernel"]["name"] == "baseline"


REFUSED = {
    "prose": ("Hello\nworld\n", "there is no step line (understood: nothing); is it a torchtitan log?"),
    "start only": (HEAD, "there is no step line (understood: "),
    "validation only": (HEAD + "[titan] x validate step:  5  loss:  3.1234  memory: 1.00GiB(2.00%)  tps: 5\n",
                        "there are validation lines, but no training step line"),
    "damaged": (HEAD + "step: 1  loss: a.b  memory: 1.00GiB(2.00%)  tps: 5\n", "none is understood"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_log_without_a_step_is_refused(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert adopt(tmp_path, text) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.splitlines()) == 1
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("nonsense=1", "--set nonsense=1: KEY=VALUE was expected"),
        ("path", "--set path: KEY"),
        ("ranks=0", "num_ranks=0"),
    ],
)
def test_wrong_setting_is_refused(
    setting: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert adopt(tmp_path, log(), "--set", setting) == 2
    assert reason in capsys.readouterr().err


def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.log"), "--runs", str(tmp_path / "runs")]) == 2
    assert "No such file" in capsys.readouterr().err


ENDS = {
    "error": (log(5, "").rstrip() + "\n[rank0]:Traceback (most recent call last):\n[rank0]:ValueError: boom\n",
              "failed", "the log shows exception ValueError boom"),
    "cut off": (log(5, ""), "failed", "the log ends with step 5 of 10: cut off, or killed"),
    "excerpt": (log(5, "").removeprefix(HEAD), "finished", ""),
}  # fmt: skip


@pytest.mark.parametrize(("text", "state", "reason"), ENDS.values(), ids=ENDS.keys())
def test_how_it_ended_is_read_from_the_log(text: str, state: str, reason: str, tmp_path: Path) -> None:
    assert adopt(tmp_path, text) == 0
    status = only(tmp_path).status()
    assert (status.state, status.reason) == (state, reason)


def test_model_that_is_not_the_named_path_has_no_mfu(tmp_path: Path) -> None:
    text = log().replace("4,022,468,096", "8,190,735,360")
    assert adopt(tmp_path, text, "--set", "path=native_4b", "--set", "chip=trn2", "--set", "lnc=2") == 0
    summary = only(tmp_path).summary()
    assert summary["steady"]["mfu"] is None
    assert "shape" in summary["reasons"]["steady.mfu"]


def test_arrives_in_mlflow_as_ingested(tmp_path: Path, empty_database: Path) -> None:
    import shutil

    (tmp_path / "runs").mkdir()
    shutil.copy(empty_database, tmp_path / "runs" / "mlflow.db")
    (tmp_path / "their.log").write_text(log())
    arguments = [str(tmp_path / "their.log"), "--runs", str(tmp_path / "runs"), "--set", "path=native_4b"]
    assert (main(arguments), main(arguments)) == (0, 0)
    database = sqlite3.connect(tmp_path / "runs" / "mlflow.db")
    ((run_id, status),) = database.execute("select run_uuid, status from runs").fetchall()
    tags = dict(database.execute("select key, value from tags where run_uuid=?", [run_id]).fetchall())
    assert (status, tags["source"]) == ("FINISHED", "ingested")
    (count,) = database.execute("select count(*) from metrics where key='train/loss'").fetchone()
    assert count == 10


def test_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "their.log").write_text(log())
    source = (
        "import sys; sys.modules['torch'] = sys.modules['torchtitan'] = None; from harness.ingest import main; "
        f"sys.exit(main([{str(tmp_path / 'their.log')!r}, '--runs', {str(tmp_path / 'runs')!r}, '--no-tracking']))"
    )
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(only(tmp_path).file("summary.json").read_text())["steps"] == 10
