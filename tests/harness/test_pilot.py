"""Whole pilots on real training: the three paths through one multirun, and trainings that fail."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from harness.launch import processes_of
from harness.rundir import RunDir, find_runs
from tests.conftest import SHALLOW, Multirun, assert_no_process, call, only_run, start

pytestmark = pytest.mark.titan
PATHS = {"hf_4b": 36, "native_4b": 36, "moe_nki": 4}
STEP_LINE = re.compile(rb"step: *(\d+)  loss: *([\d.]+)")


def test_multirun_ends_with_a_table_and_0(three_paths: Multirun) -> None:
    assert three_paths.called.exit_code == 0, three_paths.called.stderr
    assert sorted(three_paths.by_path) == sorted(PATHS)
    table = three_paths.called.stdout[three_paths.called.stdout.index("sweep") :].splitlines()
    assert [line.count("finished") for line in table if line.startswith(("│ 0", "│ 1", "│ 2"))] == [1, 1, 1]


@pytest.mark.parametrize("path", PATHS)
def test_path_trains(three_paths: Multirun, path: str) -> None:
    run = three_paths.by_path[path]
    status, rows = run.status(), list(run.rows())
    assert (status.state, status.exit_code) == ("finished", 0)
    assert [row["step"] for row in rows] == list(range(1, 11))
    printed = [(int(step), float(loss)) for step, loss in STEP_LINE.findall(run.file("train.log").read_bytes())]
    assert [(row["step"], row["loss"]) for row in rows] == printed
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.5
    assert {check["name"]: check["verdict"] for check in run.checks() if check["verdict"] != "pass"} == {}
    layers = next(check for check in run.checks() if check["name"] == "model_layers")
    assert layers["value"] == PATHS[path]
    assert run.config()["rehearsal"] is True
    assert_no_process(run)


@pytest.mark.parametrize("path", PATHS)
def test_summary_separates_the_first_step(three_paths: Multirun, path: str) -> None:
    run = three_paths.by_path[path]
    rows, summary = list(run.rows()), run.summary()
    ranks = run.config()["platform"]["num_ranks"]
    assert (summary["steps"], summary["warmup"]["rule"]) == (10, run.config()["phases"]["rule"])
    assert summary["memory"]["peak_gib"] == max(row["memory_gib"] for row in rows)
    assert summary["steady"]["loss_last"] == rows[-1]["loss"]
    if summary["phase"] == "steady":
        steady = sorted(row["tps"] for row in rows[summary["warmup_steps"] :])
        assert steady[0] <= summary["steady"]["tps_per_rank"] <= steady[-1]
        assert summary["steady"]["tokens_per_s"] == pytest.approx(ranks * summary["steady"]["tps_per_rank"])
    assert summary["end_to_end"]["tokens_per_s"] < ranks * max(row["tps"] for row in rows)


@pytest.mark.parametrize("path", PATHS)
def test_mlflow_holds_what_the_log_says(three_paths: Multirun, path: str) -> None:
    run = three_paths.by_path[path]
    database = sqlite3.connect(three_paths.runs / "mlflow.db")
    query = "select r.run_uuid, r.status from runs r join tags t using (run_uuid) where t.key='run_id' and t.value=?"
    (found,) = database.execute(query, [run.run_id]).fetchall()
    assert found[1] == "FINISHED"
    losses = database.execute(
        "select step, value from metrics where run_uuid=? and key='train/loss' order by step", [found[0]]
    ).fetchall()
    printed = [(int(step), float(loss)) for step, loss in STEP_LINE.findall(run.file("train.log").read_bytes())]
    assert losses == printed
    tags = dict(database.execute("select key, value from tags where run_uuid=?", [found[0]]).fetchall())
    assert (tags["rehearsal"], tags["phase"]) == ("true", run.summary()["phase"])
    params = dict(database.execute("select key, value from params where run_uuid=?", [found[0]]).fetchall())
    assert (params["path"], params["layers"], params["scale"]) == (path, str(PATHS[path]), "rehearsal")
    artifacts = {file.name for file in (three_paths.runs / "mlartifacts" / found[0]).rglob("*") if file.is_file()} or {
        file.name for file in (three_paths.runs / "mlartifacts").rglob("*") if found[0] in str(file) and file.is_file()
    }
    assert {"train.log", "rows.jsonl", "summary.json", "checks.json", "config.yaml", "manifest.json"} <= artifacts


def test_two_multiruns_in_the_same_second_never_collide(tmp_path: Path) -> None:
    """Their jobs are refused late, for their data, so that it takes no training to see the directories."""
    runs = tmp_path / "runs"
    common = ("-m", "+path=native_4b,moe_nki", f"runs={runs}", "data=local", "data.path=/nowhere", "platform=cpu")
    both = [start(*common), start(*common)]
    assert [process.wait() for process in both] == [1, 1]
    for process in both:
        assert process.stdout is not None
        process.stdout.close()
    sweeps = sorted((runs / ".sweeps").iterdir())
    assert len(sweeps) == 2
    assert find_runs(runs) == []


def test_failed_job_leaves_the_others_going(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    called = call("harness", "-m", "+path=native_4b", "platform.num_ranks=1", "train.flags=[--nonsense],[]",
                  "train.steps=2", f"runs={runs}", "tracking=off", *SHALLOW)  # fmt: skip
    assert called.exit_code == 1
    first, second = sorted(find_runs(runs), key=lambda run: run.status().started)
    assert (first.status().state, second.status().state) == ("failed", "finished")
    assert "nonsense" in first.status().reason
    table = called.stdout[called.stdout.index("sweep") :].splitlines()
    assert ["failed" in line for line in table if line.startswith(("│ 0", "│ 1"))] == [True, False]


def wait_for(runs: Path, text: bytes, seconds: float = 60) -> RunDir:
    """The only run below ``runs``, as soon as its log holds ``text``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = find_runs(runs)
        log = found[0].file("train.log") if found else None
        if log is not None and log.exists() and text in log.read_bytes():
            return found[0]
        time.sleep(0.05)
    raise TimeoutError(f"no {text!r} within {seconds} s")


def pid_of_rank(run: RunDir, rank: int) -> int:
    marked = [pid for pid in processes_of(run.run_id) if f"RANK={rank}".encode() in environ(pid)]
    return min(marked)


def environ(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def mlflow_status(runs: Path) -> tuple[str, dict[str, str]]:
    database = sqlite3.connect(runs / "mlflow.db")
    ((run_id, status),) = database.execute("select run_uuid, status from runs").fetchall()
    return status, dict(database.execute("select key, value from tags where run_uuid=?", [run_id]).fetchall())


def test_killed_rank_ends_the_run_as_failed(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    harness = start("+path=native_4b", "train.steps=1000", f"runs={runs}", *SHALLOW)
    run = wait_for(runs, b"step:  3")
    os.kill(pid_of_rank(run, 1), signal.SIGKILL)
    output, _ = harness.communicate(timeout=60)
    assert harness.returncode == 1, output
    status = run.status()
    assert status.state == "failed"
    assert "rank 1" in status.reason
    assert "SIGKILL" in status.reason
    assert "\n" not in status.reason
    assert "Traceback" not in output
    assert_no_process(run)
    printed = len(STEP_LINE.findall(run.file("train.log").read_bytes()))
    assert len(list(run.rows())) == printed >= 3
    state, tags = mlflow_status(runs)
    assert (state, tags["status_reason"]) == ("FAILED", status.reason)
    artifacts = {file.name for file in (runs / "mlartifacts").rglob("*")}
    assert "log_tail.txt" in artifacts


def test_exception_while_loading_data_is_named(tmp_path: Path, three_paths: Multirun) -> None:
    tokenizer = json.loads(three_paths.by_path["native_4b"].file("titan.json").read_text())["data"]["tokenizer"]
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": "word " * 200}) + "\n" for _ in range(20)) + '{"text": 7}\n')
    runs = tmp_path / "runs"
    called = call("harness", "+path=native_4b", "data=local", f"data.path={text}", "platform.num_ranks=1",
                  f"data.tokenizer={tokenizer}", "train.steps=50", f"runs={runs}", *SHALLOW)  # fmt: skip
    assert called.exit_code == 1
    run = only_run(runs)
    status = run.status()
    assert status.state == "failed"
    assert status.reason.startswith("rank 0: ")
    assert "Error" in status.reason
    assert "Traceback" in run.file("error.txt").read_text()
    assert mlflow_status(runs)[0] == "FAILED"
    assert {"error.txt", "log_tail.txt"} <= {file.name for file in (runs / "mlartifacts").rglob("*")}
    assert_no_process(run)
