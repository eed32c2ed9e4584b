"""The run directory survives torn writes, killed writers and simultaneous starts (no torch)."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from harness.launch import processes_of
from harness.repair import repair
from harness.rundir import (
    KILLED,
    RUNNING,
    GrowingJsonLines,
    JsonLines,
    RunDir,
    Status,
    claimed,
    find_runs,
    is_alive,
    own_status,
    read_jsonl,
    to_float,
)

STEP = "step:  1  loss:  7.60000  grad_norm:  0.7000  memory:  0.51GiB(2.17%)  tps: 1\n"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path / "runs", "pilot", "native_4b-baseline")


def test_simultaneous_starts_never_share_a_directory(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: RunDir.create(tmp_path, "pilot", "x").path, range(64)))
    assert len(set(runs)) == 64


def test_non_finite_numbers_survive_json(run: RunDir) -> None:
    run.write_json("x.json", {"a": math.inf, "b": -math.inf, "c": math.nan, "d": None, "e": 1.5})
    stored = run.read_json("x.json")
    assert stored == {"a": "inf", "b": "-inf", "c": "nan", "d": None, "e": 1.5}
    assert to_float(stored["a"]) == math.inf
    assert math.isnan(to_float(stored["c"]))
    assert to_float(stored["d"]) is None


def test_failed_write_leaves_the_old_document(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write_json("x.json", {"a": 1})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        run.write_json("x.json", {"a": 2})
    assert run.read_json("x.json") == {"a": 1}
    assert sorted(path.name for path in run.path.iterdir()) == ["x.json"]


def test_torn_last_line_is_passed_over_and_does_not_spoil_the_next(run: RunDir) -> None:
    path = run.file("rows.jsonl")
    path.write_bytes(b'{"step": 1}\n{"step": 2, "lo')
    assert [row["step"] for row in read_jsonl(path)] == [1]
    stream = JsonLines(path)
    stream.append({"step": 3})
    stream.close()
    assert [row["step"] for row in read_jsonl(path)] == [1, 3]


def test_growing_file_gives_each_record_once_and_only_when_complete(run: RunDir) -> None:
    path = run.file("rows.jsonl")
    growing = GrowingJsonLines(path)
    assert growing.new() == []
    path.write_bytes(b'{"step": 1}\n{"ste')
    assert growing.new() == [{"step": 1}]
    with path.open("ab") as file:
        file.write(b'p": 2}\n')
    assert growing.new() == [{"step": 2}]
    assert growing.new() == []


def test_run_of_a_dead_process_is_marked_killed(run: RunDir) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        import psutil

        started = psutil.Process(process.pid).create_time()
        status = replace(own_status(RUNNING, phase="training"), pid=process.pid, pid_started=started)
        run.write_status(status)
        assert is_alive(status)
        assert repair(run) is None
        process.kill()
        process.wait()
    repaired = repair(run)
    assert repaired is not None
    assert (repaired.state, run.status()) == (KILLED, repaired)
    assert f"{process.pid} vanished" in repaired.reason
    assert "training" in repaired.reason
    assert repair(run) is None


def test_reused_pid_is_not_the_process_that_recorded() -> None:
    assert is_alive(own_status(RUNNING))
    assert not is_alive(replace(own_status(RUNNING), pid_started=1.0))


def test_run_of_another_host_is_left_alone(run: RunDir) -> None:
    run.write_status(replace(own_status(RUNNING), host="elsewhere", pid=2**22 + 1))
    assert repair(run) is None


def test_find_runs_and_unreadable_ones(tmp_path: Path, run: RunDir) -> None:
    run.write_status(Status(state=RUNNING))
    RunDir.create(tmp_path / "runs", "pilot", "half-made")
    assert [found.path for found in find_runs(tmp_path / "runs")] == [run.path]
    assert [found.path for found in find_runs(run.path)] == [run.path]
    run.file("status.json").write_text("{")
    assert run.status() is None
    assert run.summary() == {}
    assert run.config() == {}


def test_log_tail_reads_from_the_end(run: RunDir) -> None:
    run.file("train.log").write_bytes(b"".join(b"line %d\n" % number for number in range(100_000)))
    assert run.log_tail(2) == "line 99998\nline 99999"


def test_repair_ends_what_outlived_its_harness_and_completes_the_record(run: RunDir) -> None:
    """A process that a rank started dies with nobody; the next command finds it by the run's id."""
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={"PILOT_RUN_ID": run.run_id}
    ) as left:
        while not processes_of(run.run_id):
            time.sleep(0.01)
        run.write_status(replace(own_status(RUNNING, phase="training"), pid=2**22 - 1))
        run.file("train.log").write_text(
            "step:  1  loss:  7.60000  grad_norm:  0.7000  memory:  0.51GiB(2.17%)  tps: 1\n"
        )
        (run.path / f".status.json.{2**22 - 1}.tmp").write_text("{")
        assert repair(run) is not None
        assert left.wait(10) == -9
    assert [row["step"] for row in run.rows()] == [1]
    assert list(run.path.glob(".*.tmp")) == []


def test_repair_by_two_commands_at_once_is_done_once(run: RunDir) -> None:
    run.write_status(replace(own_status(RUNNING, phase="training"), pid=2**22 - 1))
    run.file("train.log").write_text(STEP)
    with claimed(run, "repair") as mine:
        assert mine
        assert repair(RunDir(run.path)) is None
    assert repair(run) is not None
    assert len(list(run.rows())) == 1


def test_claim_of_a_process_that_is_going_is_waited_for(run: RunDir) -> None:
    with claimed(run, "sending") as first:
        assert first
        with claimed(run, "sending") as second:
            assert not second
    with claimed(run, "sending", wait_s=1.0) as third:
        assert third


@pytest.mark.parametrize("text", ["[1, 2]", "{" * 100_000, '"text"', "!!python/object/apply:os.system [true]", "a: *b"])
def test_documents_from_anywhere_break_nothing(run: RunDir, text: str) -> None:
    for name in ("config.yaml", "manifest.json", "summary.json", "checks.json", "mlflow.json", "status.json"):
        run.file(name).write_text(text)
    run.file("rows.jsonl").write_text(f"{text}\n" + "[" * 100_000 + "\n")
    assert (run.config(), run.manifest(), run.summary(), run.checks(), run.sent(), run.status()) == (
        {},
        {},
        {},
        [],
        {},
        None,
    )
    assert list(run.rows()) == []
