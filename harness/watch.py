"""From the first byte of a training's log to its last: written down, read, shown, and ended when it must be."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness import rundir
from harness.launch import TrainingProcesses
from harness.logs import Event, LogReader, Rejected, Row
from harness.progress import Progress
from harness.rundir import JsonLines, RunDir
from harness.schema import LaunchConfig

POLL_S = 0.2
QUIET_AFTER_EXIT_S = 2.0  # how long the pipe may stay open, silent, after torchrun is gone


class Recorder:
    """Puts what the reader finds on disk before anything else sees it."""

    def __init__(self, run: RunDir) -> None:
        self.rows: list[Row] = []
        self.events: list[Event] = []
        self.rejected = 0
        self._log = run.file(rundir.LOG).open("ab", buffering=0)
        self._rows = JsonLines(run.file(rundir.ROWS))
        self._events = JsonLines(run.file(rundir.EVENTS))
        self._reader = LogReader()

    def feed(self, data: bytes) -> list[Row]:
        """Write log bytes and the records in them; return the new training rows."""
        self._log.write(data)
        return self._keep(self._reader.feed(data))

    def close(self) -> list[Row]:
        """Read what the last, unfinished line holds."""
        rows = self._keep(self._reader.close())
        for file in (self._log, self._rows, self._events):
            file.close()
        return rows

    def note(self, kind: str, **data: object) -> None:
        """An event of the harness's own, e.g. a stall."""
        self._keep([Event(kind=kind, line=0, time=rundir.now(), data=dict(data))])

    def _keep(self, records: list[Row | Event | Rejected]) -> list[Row]:
        rows = [record for record in records if isinstance(record, Row)]
        events = [record for record in records if isinstance(record, Event)]
        rejected = [record for record in records if isinstance(record, Rejected)]
        self._rows.append(*(row.to_json() for row in rows))
        self._events.append(*(record.to_json() for record in (*events, *rejected)))
        self.rows += rows
        self.events += events
        self.rejected += len(rejected)
        return [row for row in rows if row.kind == "train"]


@dataclass
class Interrupts:
    """Signals received while watching: the first asks for an orderly end, the second for an instant one."""

    received: list[signal.Signals] = field(default_factory=list)

    @contextlib.contextmanager
    def caught(self) -> Iterator[Interrupts]:
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._note) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        self.received.append(signal.Signals(number))


@dataclass(frozen=True)
class End:
    """How a training ended."""

    exit_code: int | None
    """torchrun's, negative for a signal."""
    cause: str = ""
    """Why the harness ended it; empty where torchrun ended by itself."""
    interrupt: signal.Signals | None = None
    left_over: tuple[int, ...] = ()
    """Processes that torchrun left behind and that had to be killed."""


class Watchdog:
    """Decides whether a training has to be ended: interrupted, stalled, or its loss no longer finite."""

    def __init__(self, limits: LaunchConfig, interrupts: Interrupts, *, num_steps: int) -> None:
        self.cause = ""
        self._limits, self._interrupts, self._num_steps = limits, interrupts, num_steps
        self._last_step, self._last_progress = 0, time.monotonic()
        self._terminated_at: float | None = None

    def saw_step(self, row: Row) -> None:
        self._last_step, self._last_progress = row.step, time.monotonic()
        if self._limits.on_nonfinite == "stop" and row.loss is not None and not math.isfinite(row.loss):
            self._end(f"loss is {row.loss} at step {row.step}")

    def orders(self) -> str | None:
        """What to do now: None, terminate (once, when a reason appears), or kill (grace over, or a second signal)."""
        if self._interrupts.received:
            self._end(self._interrupts.received[0].name)
        elif (quiet := time.monotonic() - self._last_progress) > self._patience():
            self._end(f"stalled at step {self._last_step}: no new step for {quiet:.0f} s")
        if not self.cause:
            return None
        if self._terminated_at is None:
            self._terminated_at = time.monotonic()
            return "terminate"
        overdue = time.monotonic() - self._terminated_at > self._limits.grace_s
        return "kill" if overdue or len(self._interrupts.received) > 1 else None

    def _end(self, cause: str) -> None:
        self.cause = self.cause or cause

    def _patience(self) -> float:
        """Seconds without a step: long before the first one, which compiles, and after the last, which may export."""
        between = 0 < self._last_step < self._num_steps
        return self._limits.stall_s if between else self._limits.compile_stall_s


def watch(
    processes: TrainingProcesses, recorder: Recorder, progress: Progress, watchdog: Watchdog, interrupts: Interrupts
) -> End:
    """Read a training to its end. No process of it is left when this returns or raises."""
    progress.phase("starting")
    quiet_since = time.monotonic()
    try:
        while (data := processes.read(POLL_S)) is not None:
            if data:
                quiet_since = time.monotonic()
                _take(data, recorder, progress, watchdog)
            elif processes.exit_code is not None and time.monotonic() - quiet_since > QUIET_AFTER_EXIT_S:
                break  # torchrun is gone, and whoever holds the pipe open says nothing
            orders = watchdog.orders()
            if orders == "terminate":
                progress.phase(f"ending ({watchdog.cause})")
                processes.terminate()
            elif orders == "kill":
                break
    finally:
        if not watchdog.cause:
            processes.wait(QUIET_AFTER_EXIT_S)
        left_over = processes.kill()
        while data := processes.read(0.0):
            _take(data, recorder, progress, watchdog)
        processes.close()
        recorder.close()
    interrupt = interrupts.received[0] if interrupts.received else None
    return End(processes.exit_code, watchdog.cause, interrupt, tuple(left_over))


def _take(data: bytes, recorder: Recorder, progress: Progress, watchdog: Watchdog) -> None:
    for row in recorder.feed(data):
        watchdog.saw_step(row)
        progress.step(row.step, row.loss, row.tps)
