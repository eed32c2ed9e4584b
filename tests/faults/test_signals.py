"""Every way to be ended at every moment of a real rehearsal: right status, code, MLflow state, rows, and no process."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.repair import repair
from harness.rundir import RunDir
from harness.sync import main as sync_main
from tests.faults.contents import losses, status_of
from tests.faults.pilots import (
    Pilot,
    assert_gone,
    assert_rows_complete,
    log_of,
    ranks_of,
    start_pilot,
    torchrun_of,
)

pytestmark = [pytest.mark.titan, pytest.mark.faults]
AT_ONCE = 4

EXPORT = "train.flags=[--checkpoint.enable,--checkpoint.last_save_in_hf,--checkpoint.interval,'1000']"


def ranks_started(run: RunDir) -> bool:
    found = sorted(ranks_of(run))
    return bool(found) and found == list(range(run.config()["platform"]["num_ranks"]))


@dataclass(frozen=True)
class Moment:
    condition: Callable[[RunDir], bool]
    steps: int = 1000
    flags: tuple[str, ...] = ()


MOMENTS = {
    "start-up": Moment(ranks_started),
    "step 1": Moment(lambda run: b"Training starts at step 1" in log_of(run)),
    "steady": Moment(lambda run: b"step:  5  loss" in log_of(run)),
    "export": Moment(lambda run: b"at last step" in log_of(run), steps=5, flags=(EXPORT,)),
}


@dataclass(frozen=True)
class Fault:
    do: Callable[[Pilot, RunDir], None]
    state: str
    exit_code: int | None
    reason: str
    """What the reason must hold."""
    flags: tuple[str, ...] = ()


def to_harness(*numbers: signal.Signals) -> Callable[[Pilot, RunDir], None]:
    def do(pilot: Pilot, run: RunDir) -> None:
        for place, number in enumerate(numbers):
            time.sleep(0.3 if place else 0)
            pilot.process.send_signal(number)

    return do


def to_rank(rank: int, number: signal.Signals) -> Callable[[Pilot, RunDir], None]:
    return lambda pilot, run: os.kill(ranks_of(run)[rank], number)


STALLS = ("launch.stall_s=10", "launch.compile_stall_s=60")
"""The longer one holds before the first step, which takes its time on a busy machine, and after the last."""
ONE_RANK = ("platform.num_ranks=1",)
"""Where more ranks would only cost time: SIGINT and SIGKILL of the harness show that all of them end."""
FAULTS = {
    "SIGSTOP of a rank": Fault(to_rank(0, signal.SIGSTOP), "failed", 1, "stalled at step", STALLS),
    "SIGINT": Fault(to_harness(signal.SIGINT), "killed", 130, "SIGINT"),
    "SIGTERM": Fault(to_harness(signal.SIGTERM), "killed", 143, "SIGTERM", ONE_RANK),
    "SIGINT twice": Fault(to_harness(signal.SIGINT, signal.SIGINT), "killed", 130, "SIGINT", ONE_RANK),
    "SIGKILL of the harness": Fault(to_harness(signal.SIGKILL), "killed", -9, "vanished"),
    "SIGKILL of torchrun": Fault(
        lambda pilot, run: os.kill(torchrun_of(run), signal.SIGKILL), "failed", 1, "torchrun: killed by SIGKILL"
    ),
    "SIGKILL of rank 0": Fault(to_rank(0, signal.SIGKILL), "failed", 1, "rank 0: killed by SIGKILL"),
    "SIGKILL of rank 1": Fault(to_rank(1, signal.SIGKILL), "failed", 1, "rank 1: killed by SIGKILL"),
}


@dataclass(frozen=True)
class Left:
    """What a fault left behind."""

    pilot: Pilot
    exit_code: int
    logged_before: int
    """Bytes of the log at the moment of the fault."""


def tracked(fault: Fault, moment: Moment) -> bool:
    """Whether a tracker is there. Where it makes no difference, a sync sends the run afterwards, which is faster."""
    return fault.exit_code != 1 or moment is MOMENTS["steady"]


def meet(runs: Path, cache: Path, database: Path, fault: Fault, moment: Moment) -> Left:
    runs.mkdir(parents=True)
    shutil.copy(database, runs / "mlflow.db")
    flags = [f"train.steps={moment.steps}", "launch.grace_s=3", *moment.flags, *fault.flags]
    flags += [] if tracked(fault, moment) else ["tracking=off"]
    pilot = start_pilot(runs, *flags, cache=cache)
    run = pilot.until(moment.condition, "the moment")
    logged = len(log_of(run))
    fault.do(pilot, run)
    return Left(pilot, pilot.wait(), logged)


@pytest.fixture(scope="module")
def left(
    tmp_path_factory: pytest.TempPathFactory, prepared_cache: Path, empty_database: Path
) -> Iterator[Callable[[str, str], Left]]:
    """What each fault at each moment left behind; all are on their way before the first is asked for."""
    root = tmp_path_factory.mktemp("signals")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures: dict[tuple[str, str], Future[Left]] = {
            (fault, moment): pool.submit(
                meet,
                root / f"{number}-{place}" / "runs",
                prepared_cache,
                empty_database,
                FAULTS[fault],
                MOMENTS[moment],
            )
            for place, fault in enumerate(FAULTS)
            for number, moment in enumerate(MOMENTS)
        }
        yield lambda fault, moment: futures[fault, moment].result()
        for future in futures.values():
            future.cancel()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_fault(left: Callable[[str, str], Left], fault: str, moment: str) -> None:
    expected, found = FAULTS[fault], left(fault, moment)
    run, database = found.pilot.run, found.pilot.runs / "mlflow.db"
    assert_gone(run)
    assert found.exit_code == expected.exit_code, found.pilot.output
    if fault == "SIGKILL of the harness":
        assert run.status().state == "running"
        assert repair(run) is not None
    if fault == "SIGKILL of the harness" or not tracked(expected, MOMENTS[moment]):
        assert sync_main([str(run.path), "--uri", f"sqlite:///{database}"]) == 0
    status = run.status()
    assert (status.state, expected.reason in status.reason) == (expected.state, True), status
    assert "Traceback" not in found.pilot.output
    rows = assert_rows_complete(run)
    assert len(log_of(run)) >= found.logged_before
    if moment in ("steady", "export"):
        assert len(rows) >= 5
    assert status_of(database, run) == (expected.state.upper(), status.reason)
    assert repr(losses(database, run)) == repr([(row["step"], row["loss"]) for row in rows])
    if fault == "SIGSTOP of a rank":
        stacks = run.file("stall.txt").read_text()
        assert "T (stopped)" in stacks[stacks.index("rank 0") :].splitlines()[0]
        assert "rank 1" in stacks
        (event,) = (event for event in run.events() if event["kind"] == "stall")
        assert event["data"]["step"] == (rows[-1]["step"] if rows else 0)
