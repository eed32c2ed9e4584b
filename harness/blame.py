"""What ended a training on several nodes: the part that failed first, not those that failed for want of it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.failure import Failure, error_time, exit_codes, log_beside
from harness.logs import Event

KILLED, RAISED, OTHER, NOTHING = 3, 2, 1, 0


@dataclass(frozen=True, kw_only=True)
class Blame:
    """How likely a node's failure is the cause of all others: higher is likelier, then the earlier one."""

    severity: int = NOTHING
    at: float = float("inf")
    """Unix time of the first error that a rank of it left."""

    @property
    def key(self) -> tuple[int, float]:
        """For sorting, the likeliest first."""
        return -self.severity, self.at


def blame(failed: bool, events: Sequence[Event], rank_logs: Path) -> Blame:
    """A rank that was killed can say nothing, and the others raise errors because it is gone: it comes first."""
    if not failed:
        return Blame()
    at = error_time(rank_logs)
    exits = exit_codes(events, log_beside(rank_logs))
    if any(exited.code < 0 and exited.code != -signal.SIGTERM for exited in exits):
        return Blame(severity=KILLED)
    return Blame(severity=RAISED, at=at) if at is not None else Blame(severity=OTHER)


def named(name: str, failure: Failure) -> Failure:
    """A failure with the node in its reason."""
    return Failure(f"{name}: {failure.reason}", failure.detail, failure.memory)
