"""What is looked after while a pilot trains: its tracker, the room on its disk, the other nodes of its job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from harness.follower import Follower
from harness.interrupts import Interrupts
from harness.mlflow_client import default_uri
from harness.plan import Plan
from harness.preflight import short_of_disk
from harness.rundir import RunDir

if TYPE_CHECKING:
    from rich.console import Console

    from harness.crew import Crew


def start_follower(plan: Plan, run: RunDir) -> Follower | None:
    tracking = plan.config.tracking
    if not tracking.enabled:
        return None
    uri = tracking.uri or default_uri(Path(plan.config.runs))
    return Follower(run, uri, flush_s=tracking.flush_s, wait_s=tracking.wait_s)


def lookout(plan: Plan, follower: Follower | None, console: Console, crew: Crew | None = None) -> Callable[[], str]:
    """What is looked after every second while training: that the other nodes are there, that there is room, and that a
    person knows of an outage."""

    def look() -> str:
        if follower is not None and (why := follower.first_failure()) is not None:
            line = f"tracking: {why}; training goes on, the run directory keeps everything"
            console.print(line, style="yellow", markup=False)
        if crew is not None and (why := crew.look()):
            return why
        return short_of_disk(Path(plan.config.runs), plan.config.launch.min_free_mib)

    return look


def finish_tracking(follower: Follower, interrupts: Interrupts, console: Console) -> None:
    """Wait for the tracker as long as it gets on, and until the next signal."""
    so_far = len(interrupts.received)
    with console.status("sending to MLflow") if console.is_terminal else contextlib.nullcontext():
        follower.finish(interrupted=lambda: len(interrupts.received) > so_far)
