"""Signals that ask for an end: before a training starts they break off at once, while it runs they are noted."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

EXIT_CODES = {"SIGHUP": 129, "SIGINT": 130, "SIGTERM": 143}


class Interrupts:
    """Which signals have come. The first one raises KeyboardInterrupt, unless they are only noted by then."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self._raising = True

    @contextlib.contextmanager
    def caught(self) -> Iterator[Interrupts]:
        """Handle the signals within the block; in another thread than the main one, where that is impossible, don't."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._receive) for number in _numbers()}
        try:
            yield self
        finally:
            self._raising = not self.received
            for number, handler in before.items():
                signal.signal(number, handler)

    def only_note(self) -> None:
        """From now on to the end of the innermost block: whoever holds processes asks for signals when it can act."""
        self._raising = False

    @property
    def exit_code(self) -> int:
        """The command's exit code for the first signal; 0 if there was none."""
        return EXIT_CODES[self.received[0].name] if self.received else 0

    def _receive(self, number: int, frame: object) -> None:
        self.received.append(signal.Signals(number))
        if self._raising:
            self._raising = False
            raise KeyboardInterrupt


def _numbers() -> list[signal.Signals]:
    """SIGHUP only where it is not ignored: under nohup a training goes on without its terminal."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    return numbers if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [*numbers, signal.SIGHUP]
