"""Killed at any moment, seeded: no row lost, no wrong status, no orphan, and a sync that converges, itself killed too.

The trainer is a stand-in (see ``standin.py``), the harness, its tracker and ``harness.sync`` are real commands.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.mlflow_client import load
from harness.rundir import RunDir, find_runs
from harness.sync import sync
from tests.faults.contents import content
from tests.faults.pilots import Pilot, assert_gone, assert_rows_complete, log_of, ranks_of, standin, start_pilot

pytestmark = pytest.mark.titan
SEED, STEPS, LONGEST_S = 20261130, 20, 0.7
FAULTS = ("SIGKILL",) * 6 + ("SIGINT", "SIGTERM", "SIGINT twice", "agent", "rank", "tracker")
STATES = {"SIGKILL": ("killed",), "agent": ("failed",), "rank": ("failed",), "tracker": ("finished",)}
"""What a run may be that the fault reached while it trained; by a signal it is always killed."""
TRACKED_EVERY = 10


@dataclass(frozen=True)
class Met:
    """One pilot and what happened to it."""

    fault: str
    pilot: Pilot
    state_at_death: str
    """Of its status when its process had ended."""


def meet(number: int, runs: Path, cache: Path, database: Path) -> Met:
    choose = random.Random(SEED + number)
    fault, moment, from_start = choose.choice(FAULTS), choose.uniform(0.0, LONGEST_S), choose.random() < 0.15
    tracked = fault == "tracker" or number % TRACKED_EVERY == 0
    if tracked:
        runs.mkdir(parents=True)
        shutil.copy(database, runs / "mlflow.db")
    pilot = start_pilot(runs, *standin(STEPS), "tracking=" + ("local" if tracked else "off"), cache=cache)
    if not from_start:
        pilot.until(lambda run: True, "a run")
    time.sleep(moment)
    strike(fault, pilot)
    pilot.wait()
    found = find_runs(runs)
    status = found[0].status() if found else None
    return Met(fault, pilot, status.state if status else "")


def strike(fault: str, pilot: Pilot) -> None:
    if fault.startswith("SIG"):
        pilot.process.send_signal(signal.Signals[fault.split()[0]])
        if fault.endswith("twice"):
            time.sleep(0.05)
            pilot.process.send_signal(signal.SIGINT)
        return
    deadline = time.monotonic() + 20.0
    while pilot.process.poll() is None and time.monotonic() < deadline:
        for pid in targets(fault, pilot):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return
        time.sleep(0.005)


def targets(fault: str, pilot: Pilot) -> list[int]:
    if not (found := find_runs(pilot.runs)):
        return []
    if fault == "rank":
        return list(ranks_of(found[0]).values())
    word = {"agent": b"standin.py", "tracker": b"harness.sync"}[fault]
    try:
        children = Path(f"/proc/{pilot.process.pid}/task/{pilot.process.pid}/children").read_text().split()
        return [int(pid) for pid in children if word in Path(f"/proc/{pid}/cmdline").read_bytes()]
    except OSError:  # one of them, or the pilot, has just gone
        return []


def sync_killed(run: RunDir, uri: str, seconds: float) -> None:
    """A sync of this run that lives so long at most. MLflow is loaded already: the moment falls into the sending."""
    if (child := os.fork()) == 0:
        os.setpgid(0, 0)
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.dup2(devnull, 2)
        os._exit(sync([run], uri, everything=True))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(0.002)
    with suppress(ChildProcessError, ProcessLookupError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def judge(number: int, met: Met, disturbed: Path, undisturbed: Path) -> str:
    """Repair by the next command, sync, compare; the state."""
    found = find_runs(met.pilot.runs)
    if not found:
        assert met.fault.startswith("SIG"), met
        return "not begun"
    (run,) = found
    assert_gone(run)
    assert met.state_at_death != "running" or met.fault == "SIGKILL", (met, met.pilot.output)
    choose = random.Random(-number)
    for _ in range(choose.choice((0, 1, 1, 2))):
        sync_killed(run, f"sqlite:///{disturbed}", choose.uniform(0.0, 0.3))
    assert sync([run], f"sqlite:///{disturbed}", everything=True) == 0
    status = run.status()
    assert status.state == ("killed" if met.state_at_death == "running" else met.state_at_death), (met, status)
    rows = assert_rows_complete(run)
    if status.state == "finished":
        assert (len(rows), b"Training completed" in log_of(run)) == (STEPS, True)
    elif status.state == "killed" and met.fault != "SIGKILL":
        assert status.reason == met.fault.split()[0]
    elif status.state == "failed":
        assert "SIGKILL" in status.reason, status
    assert met.fault not in STATES or status.state in (*STATES[met.fault], "finished"), (met, status)
    assert sync([run], f"sqlite:///{undisturbed}", everything=True) == 0
    assert content(disturbed, run) == content(undisturbed, run)
    assert content(disturbed, run)["status"] == status.state.upper()
    return status.state


def campaign(count: int, root: Path, cache: Path, database: Path, at_once: int = 3) -> list[str]:
    """So many pilots, each with its fault; the states in which they were found."""
    load()
    logging.getLogger("alembic").setLevel(logging.WARNING)
    disturbed, undisturbed = root / "disturbed" / "mlflow.db", root / "undisturbed" / "mlflow.db"
    for copy in (disturbed, undisturbed):
        copy.parent.mkdir()
        shutil.copy(database, copy)
    with ThreadPoolExecutor(at_once) as pool:
        pilots: Iterator[Met] = pool.map(lambda n: meet(n, root / str(n) / "runs", cache, database), range(count))
        states, wrong = [], []
        for number, met in enumerate(pilots):
            try:
                states.append(judge(number, met, disturbed, undisturbed))
            except AssertionError as error:
                wrong.append(f"number {number}, {met.fault}: {error}")
    assert wrong == []
    return states


def test_some_kill_moments(tmp_path: Path, prepared_cache: Path, empty_database: Path) -> None:
    assert len(campaign(8, tmp_path, prepared_cache, empty_database)) == 8


@pytest.mark.faults
def test_200_kill_moments(tmp_path: Path, prepared_cache: Path, empty_database: Path) -> None:
    states = campaign(200, tmp_path, prepared_cache, empty_database)
    print({state: states.count(state) for state in sorted(set(states))})
    assert min(states.count(state) for state in ("killed", "failed", "finished")) >= 5  # the moments are well spread
