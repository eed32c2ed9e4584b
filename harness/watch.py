"""From the first byte of a training's log to its last: written down, read, shown, and ended when it must be."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from harness.interrupts import Interrupts
from harness.launch import TrainingProcesses
from harness.logs import Event, Row
from harness.progress import Progress
from harness.recorder import Recorder
from harness.schema import LaunchConfig
from harness.stacks import dump_stacks

POLL_S = 0.2
LOOK_S = 1.0
QUIET_AFTER_EXIT_S = 2.0  # how long a pipe may stay open, silent, after torchrun is gone
TAKES_LONG = ("compile", "checkpoint_save", "checkpoint_stage", "checkpoint_load")
"""Events after which the next step may be long in coming."""


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

    def __init__(self, limits: LaunchConfig, interrupts: Interrupts, *, num_steps: int, log_freq: int = 1) -> None:
        self.cause = ""
        self.interrupt: signal.Signals | None = None
        """The signal that is the cause."""
        self.stalled_at: int | None = None
        self._limits, self._interrupts = limits, interrupts
        self._last_logged = num_steps // log_freq * log_freq
        self._last_step, self._last_progress = 0, time.monotonic()
        self._takes_long = True
        self._terminated_at: float | None = None

    def saw_step(self, row: Row) -> None:
        self._last_step, self._last_progress, self._takes_long = row.step, time.monotonic(), False
        if self._limits.on_nonfinite == "stop" and not finite(row):
            self.end(f"loss is {row.loss} at step {row.step}")

    def saw_event(self, event: Event) -> None:
        if event.kind in TAKES_LONG:
            self._takes_long, self._last_progress = True, time.monotonic()

    def orders(self) -> str | None:
        """What to do now: None, terminate (once, when a reason appears), or kill (grace over, or a second signal)."""
        if self._interrupts.received and not self.cause:
            self.interrupt = self._interrupts.received[0]
            self.end(self.interrupt.name)
        elif not self.cause and (quiet := time.monotonic() - self._last_progress) > self._patience():
            self.stalled_at = self._last_step
            self.end(f"stalled at step {self._last_step}: no new step for {quiet:.0f} s")
        if not self.cause:
            return None
        if self._terminated_at is None:
            self._terminated_at = time.monotonic()
            return "terminate"
        overdue = time.monotonic() - self._terminated_at > self._limits.grace_s
        return "kill" if overdue or len(self._interrupts.received) > 1 else None

    def ended(self, exit_code: int | None) -> None:
        """The training has ended by itself, or by a signal that came to all processes (Slurm)."""
        if exit_code != 0 and self._interrupts.received and not self.cause:
            self.interrupt = self._interrupts.received[0]
            self.end(self.interrupt.name)

    def end(self, cause: str) -> None:
        """Ask for an orderly end; the first cause counts."""
        self.cause = self.cause or cause

    def _patience(self) -> float:
        """Seconds without a step: long before the first one, which compiles, and after the last, which may export."""
        between = 0 < self._last_step < self._last_logged and not self._takes_long
        return self._limits.stall_s if between else self._limits.compile_stall_s


def finite(row: Row) -> bool:
    return row.loss is None or math.isfinite(row.loss)


def watch(
    processes: TrainingProcesses,
    recorder: Recorder,
    progress: Progress,
    watchdog: Watchdog,
    look: Callable[[], str] = str,
    before_close: Callable[[], None] = lambda: None,
) -> End:
    """Read a training to its end. No process of it is left when this returns or raises.

    Args:
        look: called every second; what it returns, if anything, is why the training has to end.
        before_close: called when all processes are gone; may still note events.
    """
    progress.phase("starting")
    quiet_since = looked = time.monotonic()
    try:
        while True:
            chunks = processes.read(POLL_S)
            for rank, data in chunks:
                _take(data, rank, recorder, progress, watchdog)
            now = time.monotonic()
            if chunks:
                quiet_since = now
            elif processes.exit_code is not None and (processes.ended or now - quiet_since > QUIET_AFTER_EXIT_S):
                break  # torchrun is gone, and whoever holds a pipe open says nothing
            if now - looked > LOOK_S:
                looked = now
                watchdog.end(look() or ("disk full: no room for the record" if recorder.disk_full else ""))
            orders = watchdog.orders()
            if orders == "terminate":
                _terminate(processes, recorder, progress, watchdog)
            elif orders == "kill":
                break
    finally:
        if not watchdog.cause:
            processes.wait(QUIET_AFTER_EXIT_S)
            watchdog.ended(processes.exit_code)
        left_over = processes.kill()
        while chunks := processes.read(0.0):
            for rank, data in chunks:
                _take(data, rank, recorder, progress, watchdog)
        processes.close()
        before_close()
        recorder.close()
    return End(processes.exit_code, watchdog.cause, watchdog.interrupt, tuple(left_over))


def _terminate(processes: TrainingProcesses, recorder: Recorder, progress: Progress, watchdog: Watchdog) -> None:
    progress.phase(f"ending ({watchdog.cause})")
    if watchdog.stalled_at is not None:
        recorder.write_text("stall.txt", dump_stacks(processes.run_id))
        recorder.note("stall", step=watchdog.stalled_at, message=watchdog.cause, stacks="stall.txt")
    else:
        recorder.note("ended_by_harness", message=watchdog.cause)
    processes.terminate()


def _take(data: bytes, rank: int | None, recorder: Recorder, progress: Progress, watchdog: Watchdog) -> None:
    num_events = len(recorder.events)
    for row in recorder.feed(data, rank):
        if not finite(row) and recorder.nonfinite_at is None:
            recorder.nonfinite_at = row.step
            recorder.note("nonfinite", step=row.step, value=row.loss)
        watchdog.saw_step(row)
        progress.step(row.step, row.loss, row.tps)
    for event in recorder.events[num_events:]:
        watchdog.saw_event(event)
