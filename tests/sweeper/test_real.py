"""One sweep of real trainings, ended by Ctrl-C in the middle of a pilot and started again."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from harness.rundir import FINISHED, KILLED, find_runs
from tests.conftest import SHALLOW, assert_no_process, call, start
from tests.sweeper.conftest import rows

COMMAND = (
    *("+path=native_4b", "train.seed=1,2", "replicates=1", "platform=cpu", *SHALLOW),
    *("train.steps=3", "tracking=off", "sampling.enabled=false"),
    "sweep.mix=true",  # the work tree may change meanwhile
)


@pytest.mark.titan
@pytest.mark.faults
def test_ctrl_c_in_a_training_and_the_same_command_again(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    sweep = start(*COMMAND, f"runs={runs}")
    states: list[str] = []
    deadline = time.monotonic() + 200
    while states != [FINISHED, "running"] and sweep.poll() is None and time.monotonic() < deadline:
        states = [status.state for run in find_runs(runs) if (status := run.status())]
        time.sleep(0.1)
    sweep.send_signal(signal.SIGINT)
    output, _ = sweep.communicate(timeout=60)
    assert sweep.returncode == 130, output
    assert "interrupted: 1 of 2 finished; the same command runs the other 1:" in output
    first, second = find_runs(runs)
    assert [run.status().state for run in (first, second)] == [FINISHED, KILLED]
    assert_no_process(second)

    resumed = call("harness", *COMMAND, f"runs={runs}")
    assert resumed.exit_code == 0, resumed.stderr
    kept, killed, new = find_runs(runs)
    assert [run.run_id for run in (kept, killed)] == [first.run_id, second.run_id]
    assert [(row[2], row[3], row[-1]) for row in rows(resumed.stdout)] == [
        ("A train.seed=1", "finished", kept.run_id),
        ("B train.seed=2", "finished", new.run_id),
    ]
    placed = [(run.config()["replicate"], run.config()["block"], run.config()["order"]) for run in (kept, new)]
    assert placed == [(0, 0, 0), (0, 0, 1)]
    names = {run.manifest()["sweep"] for run in (kept, new)}  # the killed one may not have got as far as a manifest
    assert [name.partition("-")[0] for name in names] == ["pilot"]
