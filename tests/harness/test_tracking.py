"""A run directory in MLflow: complete, the same however often it is sent, and never in the way (no torch)."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.projection import Point, StepClock, clean_name, flatten, note, params, row_points, sample_points, to_ms
from harness.rundir import FAILED, FINISHED, RUNNING, JsonLines, RunDir, own_status
from harness.sync import main as sync_main
from harness.tracking import Tracker

CONFIG = """
path: {name: native_4b}
kernel: {name: baseline}
platform: {name: cpu, num_ranks: 2}
train: {steps: 3, seq_len: 256, seed: 1, dtype: float32}
rehearsal: true
replicate: 1
phases: {rule: skip_first}
"""
ROWS = [
    {"kind": "train", "step": 1, "loss": 7.6, "grad_norm": "nan", "tps": 100, "memory_gib": 0.5, "mfu": None,
     "time": "2026-11-30T04:21:18.935"},
    {"kind": "train", "step": 2, "loss": 7.5, "grad_norm": "inf", "tps": 1500, "memory_gib": 0.5, "mfu": 0.0,
     "time": "2026-11-30T04:21:19.636"},
    {"kind": "validate", "step": 2, "loss": 7.55, "tps": 2000, "time": "2026-11-30T04:21:19.700"},
    {"kind": "train", "step": 3, "loss": 7.25, "grad_norm": 0.9, "tps": 1600, "time": "2026-11-30T04:21:20.255"},
]  # fmt: skip


def make_run(root: Path, *, state: str = FINISHED, rows: int = len(ROWS)) -> RunDir:
    run = RunDir.create(root, "pilot", "native_4b-baseline")
    run.write_text("config.yaml", CONFIG)
    run.write_json("manifest.json", {"run_name": "native_4b baseline r1", "versions": {"torch": "2.13.0"},
                                     "git": {"commit": "abc", "dirty": False, "changes": "none"}, "config_hash": "f00",
                                     "shape": {"num_layers": 36, "hidden": 64}})  # fmt: skip
    run.file("train.log").write_text("token hf_" + "a1B2" * 8 + "\nstep: 1 loss: 7.6\n")
    stream = JsonLines(run.file("rows.jsonl"))
    stream.append(*ROWS[:rows])
    JsonLines(run.file("samples.jsonl")).append({"time": "2026-11-30T04:21:19.700", "cpu": {"percent": 50.0}})
    end(run, state)
    return run


def end(run: RunDir, state: str) -> None:
    summary = {"steps": 3, "warmup_steps": 1, "phase": "steady", "recompile_steps": [], "compile_s": 0.4}
    summary |= {"steady": {"tokens_per_s": 3100.0, "mfu": None}, "warmup": {"rule": "skip_first"}}
    run.write_json("summary.json", summary | {"loss": {"first": 7.6, "last": 7.25}})
    run.write_json("checks.json", [{"name": "model_layers", "verdict": "pass", "evidence": "36", "value": 36.0}])
    status = own_status(
        state, reason="rank 1: boom" if state == FAILED else "", started="2026-11-30T04:21:00.000+00:00"
    )
    run.write_status(replace(status, ended="2026-11-30T04:21:30.000+00:00" if state != RUNNING else ""))


@pytest.fixture
def server(tmp_path: Path, empty_database: Path) -> str:
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def content(uri: str, run: RunDir) -> dict:
    """Everything MLflow holds of a run, comparable."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("pilot")
    found = client.search_runs([experiment.experiment_id], filter_string=f"tags.run_id = '{run.run_id}'")
    assert len(found) == 1
    data, info = found[0].data, found[0].info
    history = {
        name: [
            (point.step, point.timestamp, str(point.value)) for point in client.get_metric_history(info.run_id, name)
        ]
        for name in data.metrics
    }
    files = sorted(file.path for file in client.list_artifacts(info.run_id))
    about = {"status": info.status, "name": info.run_name, "start": info.start_time, "end": info.end_time}
    return about | {"params": data.params, "tags": data.tags, "history": history, "files": files, "id": info.run_id}


def test_everything_arrives(tmp_path: Path, server: str) -> None:
    run = make_run(tmp_path / "runs")
    Tracker(run, server).send()
    found = content(server, run)
    assert (found["status"], found["name"]) == ("FINISHED", "native_4b baseline r1")
    assert found["start"] == to_ms("2026-11-30T04:21:00.000+00:00")
    assert found["end"] == to_ms("2026-11-30T04:21:30.000+00:00")
    assert found["history"]["train/loss"] == [
        (step, to_ms(time), value)
        for step, time, value in [
            (1, ROWS[0]["time"], "7.6"),
            (2, ROWS[1]["time"], "7.5"),
            (3, ROWS[3]["time"], "7.25"),
        ]
    ]
    assert [point[2] for point in found["history"]["train/grad_norm"]] == ["nan", "1.7976931348623157e+308", "0.9"]
    assert [point[0] for point in found["history"]["validate/loss"]] == [2]
    assert [point[2] for point in found["history"]["train/mfu_reported"]] == ["0.0"]
    assert found["history"]["system/cpu/percent"] == [(2, to_ms("2026-11-30T04:21:19.700"), "50.0")]
    last = {name: points[-1][2] for name, points in found["history"].items()}
    assert (last["steady/tokens_per_s"], last["warmup/steps"], last["warmup/compile_s"]) == ("3100.0", "1.0", "0.4")
    assert (last["check/model_layers"], last["warmup/recompiles"]) == ("36.0", "0.0")
    assert "steady/mfu" not in last
    assert found["params"]["path"] == "native_4b"
    assert found["params"]["layers"] == "36"
    assert found["params"]["version.torch"] == "2.13.0"
    tags = found["tags"]
    assert (tags["rehearsal"], tags["config_hash"], tags["git_commit"], tags["replicate"]) == (
        "true",
        "f00",
        "abc",
        "1",
    )
    assert tags["git_changes"] == "none"
    assert tags["check/model_layers"] == "pass"
    assert found["files"] == ["checks.json", "config.yaml", "manifest.json", "rows.jsonl", "samples.jsonl",
                              "status.json", "summary.json", "train.log"]  # fmt: skip


def test_log_in_mlflow_is_scrubbed(tmp_path: Path, server: str) -> None:
    Tracker(make_run(tmp_path / "runs"), server).send()
    (log,) = (tmp_path / "mlartifacts").rglob("train.log")
    assert log.read_text() == "token [redacted]\nstep: 1 loss: 7.6\n"


def test_failed_run_carries_its_end(tmp_path: Path, server: str) -> None:
    run = make_run(tmp_path / "runs", state=FAILED)
    run.write_text("error.txt", "Traceback\nValueError: boom\n")
    Tracker(run, server).send()
    found = content(server, run)
    assert (found["status"], found["tags"]["status_reason"]) == ("FAILED", "rank 1: boom")
    assert {"error.txt", "log_tail.txt"} <= set(found["files"])


def test_sending_twice_changes_nothing(tmp_path: Path, server: str) -> None:
    run = make_run(tmp_path / "runs")
    Tracker(run, server).send()
    first = content(server, run)
    run.file("mlflow.json").unlink()  # as if the acknowledgement had been lost
    Tracker(run, server).send()
    assert content(server, run) == first


CUTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the rows": lambda patch: patch.setattr(Tracker, "_send_rows", broken),
    "in the rows": lambda patch: patch.setattr(Tracker, "_log", after(1, Tracker._log)),
    "before the end": lambda patch: patch.setattr(Tracker, "_finish", broken),
    "before the acknowledgement": lambda patch: patch.setattr(Tracker, "_save", after(2, Tracker._save)),
}


def broken(*_: object, **__: object) -> None:
    raise ConnectionError("cut off")


def after(calls: int, function: Callable) -> Callable:
    """``function``, which fails from its call number ``calls`` on."""
    count = iter(range(10_000))
    return lambda *args, **kwargs: function(*args, **kwargs) if next(count) < calls else broken()


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
def test_half_sent_run_is_completed(
    cut: Callable, tmp_path: Path, server: str, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "runs")
    with monkeypatch.context() as patch:
        cut(patch)
        with pytest.raises(ConnectionError):
            Tracker(run, server).send()
    Tracker(run, server).send()
    sent = content(server, run)
    undisturbed_db = tmp_path / "other" / "mlflow.db"
    undisturbed_db.parent.mkdir()
    shutil.copy(empty_database, undisturbed_db)
    Tracker(run, f"sqlite:///{undisturbed_db}").send()
    undisturbed = content(f"sqlite:///{undisturbed_db}", run)
    assert {**sent, "id": ""} == {**undisturbed, "id": ""}


def test_growing_run_is_sent_in_pieces_and_finished_last(tmp_path: Path, server: str) -> None:
    run = make_run(tmp_path / "runs", state=RUNNING, rows=1)
    tracker = Tracker(run, server)
    tracker.send()
    assert content(server, run)["status"] == "RUNNING"
    assert (tracker.sent.rows, tracker.sent.complete) == (1, False)
    JsonLines(run.file("rows.jsonl")).append(*ROWS[1:])
    tracker.send()
    assert tracker.sent.rows == 4
    end(run, FINISHED)
    tracker.send()
    found = content(server, run)
    assert (found["status"], len(found["history"]["train/loss"])) == ("FINISHED", 3)


def test_server_that_is_down_is_one_line_and_loses_nothing(
    tmp_path: Path, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "runs")
    down = "http://user:secret@127.0.0.1:9"
    assert sync_main([str(run.path), "--uri", down]) == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "not sent" in error
    assert "secret" not in error + run.file("mlflow.json").read_text()
    assert sync_main([str(run.path), "--uri", server]) == 0
    assert "4 new rows of 4" in capsys.readouterr().out
    assert content(server, run)["status"] == "FINISHED"


def test_sync_passes_by_what_is_complete(tmp_path: Path, server: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "runs")
    assert sync_main(["--runs", str(tmp_path / "runs"), "--uri", server]) == 0
    assert "sent (4 new rows" in capsys.readouterr().out
    assert sync_main(["--runs", str(tmp_path / "runs"), "--uri", server]) == 0
    assert capsys.readouterr().out == ""


def test_sync_of_no_run_directory_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sync_main([str(tmp_path)]) == 2
    assert "no run directory" in capsys.readouterr().err


# -- the pure part ----------------------------------------------------------------------------------------------------


def test_placeholders_are_no_points() -> None:
    assert list(row_points({"kind": "train", "step": 4, "loss": None, "tps": 5, "time": None}, 7)) == [
        Point("train/tps_per_rank", 5.0, 4, 7)
    ]


def test_samples_get_the_step_under_way() -> None:
    clock = StepClock()
    for row in ROWS:
        clock.add(row)
    assert [clock.at({"time": f"2026-11-30T04:21:{second}"}) for second in ("10", "18.935", "19.700", "25")] == [
        0,
        1,
        2,
        3,
    ]
    (point,) = sample_points({"time": "2026-11-30T04:21:25", "load": 1.5, "name": "x"}, 3)
    assert (point.name, point.value, point.step) == ("system/load", 1.5, 3)


def test_names_of_torchtitan_become_names_of_mlflow() -> None:
    assert clean_name("memory/max_active(GiB)") == "memory/max_active_GiB_"
    assert dict(flatten({"a": {"b": 1, "c": None, "d": True, "e": "inf"}, "f": [1]})) == {"a/b": 1.0, "a/e": math.inf}


def test_note_says_rehearsal_first(tmp_path: Path) -> None:
    lines = note(make_run(tmp_path)).split("\n\n")
    assert len(lines) == 5
    assert "Rehearsal on CPU" in lines[0]
    assert "36 layers, hidden 64; 2 ranks, sequence 256" in lines[1]
    assert lines[2] == "Loss 7.6 → 7.25 in 3 steps."
    assert "3,100 tokens/s over all ranks" in lines[3]


def test_params_of_a_foreign_log_leave_out_what_is_not_known() -> None:
    assert params({}, {"ingested": {"path": "x"}}) == {"ingested.path": "x"}
