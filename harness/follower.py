"""The process that sends a run directory to MLflow while it grows, seen from the pilot, which never waits for it.

It tells through a pipe what became of each request, a line each: ``ready``, ``ok SECONDS`` or ``failed WHY``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable

from harness.launch import dying_with_parent
from harness.mlflow_client import SQLITE, URI
from harness.repair import TRACKING_LOG
from harness.rundir import RunDir

POLL_S = 0.05
START_S = 30.0
"""How long the process may take to start, which is our own slowness, not the server's."""
ANSWER_S = 1.2
"""How long the end of a pilot waits for the answer of a server that has never answered, or failed last."""
ALIVE_S = 10.0
"""The same for a server whose last answer was one: a busy machine makes it slow for a moment, a dead one refuses."""
LOCAL_ANSWER_S = 30.0
"""The same for a local database: it cannot hang, but making its tables takes a while."""
PATIENCE = 3.0
"""A server that answers is given this many times its slowest answer."""


class Follower:
    """Sends one run to one server in a process of its own (``python -m harness.sync --follow``)."""

    def __init__(self, run: RunDir, uri: str, *, flush_s: float, wait_s: float) -> None:
        self._wait_s, self._answer_s = wait_s, LOCAL_ANSWER_S if uri.startswith(SQLITE) else ANSWER_S
        self._slowest, self._ready, self._alive, self._failures = 0.0, False, False, 0
        self._first_failure: str | None = None
        self._unread = b""
        self._pipe, telling = os.pipe()
        os.set_blocking(self._pipe, False)
        options = ["--flush-s", str(flush_s), "--tell", str(telling)]
        with run.file(TRACKING_LOG).open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.sync", "--follow", str(run.path), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {URI: uri},  # an argument would show a password to everyone on the machine
                start_new_session=True,
                pass_fds=(telling,),
                preexec_fn=dying_with_parent(),
            )
        os.close(telling)

    def first_failure(self) -> str | None:
        """Why the server could not be reached, once, the first time that it could not."""
        self._listen()
        failure, self._first_failure = self._first_failure, None
        return failure

    def finish(self, interrupted: Callable[[], bool]) -> None:
        """Let it send the rest of a run that has ended, as long as that gets on; what is missing is left to a sync."""
        started = heard = time.monotonic()
        failures = self._failures
        while self._process.poll() is None and not interrupted() and time.monotonic() - started < self._wait_s:
            if self._listen():
                heard = time.monotonic()
            if self._failures > failures or time.monotonic() - heard > self._patience():
                break
            time.sleep(POLL_S)
        self.end()

    def end(self) -> None:
        """No process is left afterwards."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def _patience(self) -> float:
        if not self._ready:
            return START_S
        return max(ALIVE_S, self._answer_s, PATIENCE * self._slowest) if self._alive else self._answer_s

    def _listen(self) -> bool:
        """Take in what the process has told since; whether that was anything."""
        with contextlib.suppress(OSError):  # nothing new, or closed
            while data := os.read(self._pipe, 1 << 16):
                self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            self._ready = True
            if word == "ok":
                self._slowest, self._alive = max(self._slowest, float(rest)), True
            elif word == "failed":
                self._failures, self._alive = self._failures + 1, False
                if self._failures == 1:
                    self._first_failure = rest
        return bool(lines)
