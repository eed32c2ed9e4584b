"""How submitted pilots get on: Slurm knows their jobs, the directory of runs knows their runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness import rundir, slurm
from harness.meeting import records_of
from harness.pilot import Outcome
from harness.queue.submit import Submitted
from harness.repair import repair
from harness.rundir import RunDir, Status

if TYPE_CHECKING:
    from rich.console import Console

SETTLE_S = 5.0
"""How long a run may still say that it is running after Slurm has ended its job: file systems take their time."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """One pilot of the queue."""

    job: Submitted
    index: int
    """Which of the job's pilots."""

    @property
    def name(self) -> str:
        return self.job.pilots[self.index].name

    def run(self, runs: Path) -> RunDir | None:
        """The run of this pilot, as soon as it has one."""
        found = [record for record in records_of(runs, self.job.job_id) if record.index == self.index]
        return RunDir(runs / found[-1].run) if found else None


def places(jobs: Sequence[Submitted]) -> list[Place]:
    return [Place(job=job, index=index) for job in jobs for index in range(len(job.pilots))]


def wait(jobs: Sequence[Submitted], runs: Path, console: Console, *, poll_s: float) -> list[Outcome]:
    """Show how the jobs get on until Slurm has ended all of them; what became of each pilot, in order."""
    shown: dict[tuple[str, int], str] = {}
    while True:
        known = slurm.own_jobs()
        for place in places(jobs):
            text = describe(place, runs, (known or {}).get(place.job.job_id))
            key = (place.job.job_id, place.index)
            if known is not None and text != shown.get(key):
                shown[key] = text
                console.print(f"job {place.job.job_id}  {place.name}  {text}", markup=False)
        if known is not None and all(_over(job, known) for job in jobs):
            break
        time.sleep(poll_s)
    return [outcome(place, runs) for place in places(jobs)]


def _over(job: Submitted, known: Mapping[str, slurm.JobState]) -> bool:
    """A job that Slurm has forgotten is over, if it says so when asked for it alone."""
    state = known.get(job.job_id) or slurm.job_state(job.job_id)
    return state is not None and state.ended


def outcome(place: Place, runs: Path) -> Outcome:
    """What became of a pilot whose job has ended."""
    deadline = time.monotonic() + SETTLE_S
    while (run := place.run(runs)) is not None and time.monotonic() < deadline:
        status = run.status()
        if status is not None and status.state != rundir.RUNNING:
            break
        time.sleep(0.2)
    if run is None:
        state = slurm.job_state(place.job.job_id)
        said = f"{state.state}{f' ({state.reason})' if state.reason not in ('', 'None') else ''}" if state else "ended"
        return Outcome(None, "not run", f"Slurm job {place.job.job_id} {said}; log {place.job.log}", 1, place.name)
    repair(run)
    status = run.status() or Status(state=rundir.FAILED, reason="no status")
    return Outcome(run, status.state, status.reason, 1 if status.exit_code is None else status.exit_code, place.name)


def describe(place: Place, runs: Path, job: slurm.JobState | None) -> str:
    """Where a pilot is, in a few words."""
    run = place.run(runs)
    status = run.status() if run else None
    where = f" on {','.join(job.nodes)}" if job and job.nodes else ""
    if status is not None and run is not None and (status.state != rundir.RUNNING or job is None or job.ended):
        return f"{status.state}{f': {status.reason}' if status.reason else ''}"
    if status is not None:
        attempt = f", attempt {status.attempt}" if status.attempt > 1 else ""
        return f"{status.phase or status.state}{where}{attempt}"
    if job is None:
        return "not known to Slurm"
    return f"{job.state.lower()}{where}{f' ({job.reason})' if job.reason not in ('', 'None') else ''}"
