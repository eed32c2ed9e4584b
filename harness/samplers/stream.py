"""A monitor program that prints samples until it is stopped: started, read by line, and never in training's way."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Write = Callable[[dict[str, Any]], None]


class Warn(Protocol):
    """Takes a warning as an event of the harness: ``warn("monitor", name=..., message=...)``."""

    def __call__(self, kind: str, **data: object) -> None: ...


class Monitor:
    """Runs ``command`` and hands each line of its standard output to ``read``, on a thread of its own.

    A program that is not there, cannot be started or ends before ``stop`` is one warning. ``read`` returns the samples
    that a line completes, ``rest`` those that are complete once the stream has ended.
    """

    name = "monitor"

    def __init__(self, command: Sequence[str], write: Write, warn: Warn) -> None:
        self.command, self._write, self._warn = list(command), write, warn
        self.errors = 0
        """Samples that could not be written."""
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False

    def read(self, line: str) -> list[dict[str, Any]]:
        raise NotImplementedError

    def rest(self) -> list[dict[str, Any]]:
        return []

    def complaint(self) -> str:
        """What was wrong with the stream, once it has ended; empty if nothing."""
        return ""

    def start(self) -> bool:
        """Whether the program runs now."""
        if shutil.which(self.command[0]) is None:
            self._tell(f"{self.command[0]} is not on PATH: no device samples")
            return False
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            self._tell(f"{self.command[0]} cannot be started ({error}): no device samples")
            return False
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()
        return True

    def stop(self) -> None:
        """End the program and wait for its last line; safe to call twice or without a start."""
        self._stopping = True
        if self._process is None or self._thread is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
        self._thread.join(timeout=3.0)
        if self._thread.is_alive():  # it ignores SIGTERM
            self._process.kill()
            self._thread.join(timeout=3.0)

    def _run(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._keep(self.read(line))
        self._keep(self.rest())
        code = self._process.wait()
        if not self._stopping:
            self._tell(
                f"{self.command[0]} ended while the run trained (exit code {code}): no device samples from here on"
            )
        elif complaint := self.complaint():
            self._tell(complaint)

    def _keep(self, samples: list[dict[str, Any]]) -> None:
        for sample in samples:
            try:
                self._write(sample)
            except OSError:
                self.errors += 1

    def _tell(self, message: str) -> None:
        with contextlib.suppress(OSError):
            self._warn("monitor", name=self.name, message=message)
