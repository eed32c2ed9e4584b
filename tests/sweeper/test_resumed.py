"""Sweeps through Hydra that are interrupted, fail or find other code, and are started again; pilots are stand-ins."""

from __future__ import annotations

import re
from typing import Any

from harness.rundir import FAILED
from tests.sweeper.conftest import FakePilots, interrupted, rows

COMMAND = ("+path=native_4b", "train.seed=1,2", "replicates=2")


def table(output: str) -> list[list[str]]:
    """The table without the runs' names, which are new every time."""
    return [row[:-1] for row in rows(output)]


def test_interrupted_and_resumed_ends_with_the_table_of_an_uninterrupted_sweep(
    harness: Any, pilots: FakePilots
) -> None:
    _, whole, _ = harness(*COMMAND, "experiment_name=whole")
    assert pilots.ran == [0, 1, 2, 3]
    pilots.ran.clear()
    pilots.plans[2] = interrupted
    code, out, _ = harness(*COMMAND)
    assert (code, pilots.ran) == (130, [0, 1, 2])
    assert [row[3] for row in rows(out)] == ["finished", "finished", "killed SIGINT", "not run"]
    assert (
        "interrupted: 2 of 4 finished; the same command runs the other 2:\n  python -m harness +path=native_4b" in out
    )
    pilots.plans.clear()
    pilots.ran.clear()
    code, resumed, _ = harness(*COMMAND)
    assert (code, pilots.ran) == (0, [2, 3])
    assert "2 finished before, 2 to run" in resumed
    assert table(resumed) == table(whole)
    assert [row[3] for row in rows(resumed)] == ["finished"] * 4
    assert "A  train.seed=1: 2 of 2 finished, median 1,002 steady tokens/s" in resumed  # 1000 and 1003
    pilots.ran.clear()
    code, nothing, _ = harness(*COMMAND)
    assert (code, pilots.ran) == (0, [])
    assert rows(nothing) == rows(resumed)


def test_runs_without_a_steady_part_are_counted_not_repeated(harness: Any, pilots: FakePilots) -> None:
    pilots.speeds = {0: None}
    code, out, _ = harness(*COMMAND)
    assert code == 0
    assert "A  train.seed=1: 2 of 2 finished, 1 without a steady part (more train.steps help), median 1,003" in out
    pilots.ran.clear()
    assert harness(*COMMAND)[0] == 0
    assert pilots.ran == []


def test_failed_pilots_leave_the_others_going_and_are_run_again(harness: Any, pilots: FakePilots) -> None:
    def defect() -> tuple[str, str, int]:
        raise RuntimeError("a defect")

    pilots.plans = {0: lambda: (FAILED, "out of memory", 1), 1: defect, 3: lambda: ("finished", "checks failed: x", 1)}
    code, out, err = harness(*COMMAND)
    assert (code, pilots.ran) == (1, [0, 1, 2, 3])
    assert [row[3] for row in rows(out)] == [
        "failed out of memory",
        "failed RuntimeError: a defect",
        "finished",
        "finished checks failed: x",
    ]
    assert "RuntimeError: a defect" in err
    assert "A  train.seed=1: 0 of 2 finished" in out
    pilots.plans.clear()
    pilots.ran.clear()
    code, out, _ = harness(*COMMAND)
    assert (code, pilots.ran) == (0, [0, 1, 3])
    assert [row[3] for row in rows(out)] == ["finished"] * 4


def test_jobs_are_told_their_place_and_the_price_is_told_before(harness: Any, pilots: FakePilots) -> None:
    _, out, _ = harness(*COMMAND, "platform.price_per_hour=36")
    assert "expected time and cost: unknown, no earlier run of train.seed=1 and train.seed=2 here" in out
    _, out, _ = harness(*COMMAND, "replicates=3", "platform.price_per_hour=36")
    assert "expected time: 120 s, expected cost: 1.20 at 36 per hour (from 4 earlier runs)" not in out  # 2 min
    assert "expected time: 2 min, expected cost: 1.20 at 36 per hour (from 4 earlier runs)" in out
    assert re.search(r"\[5/6\] block 2, arm A: train\.seed=1", out)
    assert pilots.ran == [0, 1, 2, 3, 4, 5]


def test_other_code_is_not_mixed_in_unless_told(harness: Any, pilots: FakePilots, code_now: dict[str, Any]) -> None:
    pilots.plans[1] = interrupted
    assert harness(*COMMAND)[0] == 130
    pilots.plans.clear()
    pilots.ran.clear()
    code_now["commit"] = "b" * 40
    code, _, err = harness(*COMMAND)
    assert (code, pilots.ran) == (2, [])
    assert f"git.commit was {'a' * 40}, is {'b' * 40}" in err
    code, _, _ = harness(*COMMAND, "sweep.mix=true")
    assert (code, pilots.ran) == (0, [1, 2, 3])


def test_code_that_changes_under_a_running_sweep_ends_it(
    harness: Any, pilots: FakePilots, code_now: dict[str, Any]
) -> None:

    def edit() -> tuple[str, str, int]:
        code_now["dirty"] = True
        return "finished", "", 0

    pilots.plans[1] = edit
    code, out, err = harness(*COMMAND)
    assert (code, pilots.ran) == (2, [0, 1])
    assert "the code changed while the sweep ran: aaaaaaaaaa when it began, aaaaaaaaaa with changes now" in err
    assert [row[3] for row in rows(out)] == ["finished", "finished", "not run", "not run"]
