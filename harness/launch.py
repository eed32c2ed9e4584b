"""The torchrun command and its processes: started together, read through one pipe, ended together.

torchrun starts every rank in a session of its own, so signalling a process group does not reach them. Every process of
a run therefore carries ``PILOT_RUN_ID`` in its environment, and the harness finds them by it. Each also asks the kernel
to be killed when its parent dies, so that nothing survives a killed harness.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

RUN_ID = "PILOT_RUN_ID"
SPEC = "PILOT_SPEC"
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def torchrun() -> str:
    """The torchrun of this Python's environment, else the one on PATH."""
    beside = Path(sys.executable).with_name("torchrun")
    return str(beside) if beside.exists() else shutil.which("torchrun") or "torchrun"


def torchrun_command(*, num_ranks: int, log_dir: Path | str, arguments: Sequence[str]) -> list[str]:
    """One node's command: rank 0 on the console with its prefix, every rank's output and error file in ``log_dir``."""
    return [
        torchrun(),
        f"--nproc_per_node={num_ranks}",
        "--rdzv_backend=c10d",
        "--rdzv_endpoint=localhost:0",
        "--local-ranks-filter=0",
        "--role=rank",
        "--tee=3",
        f"--log-dir={log_dir}",
        "-m",
        "harness.titan",
        *arguments,
    ]


class TrainingProcesses:
    """torchrun and everything below it."""

    def __init__(self, command: Sequence[str], *, run_id: str, env: Mapping[str, str]) -> None:
        """Start the command in a session of its own with ``env`` on top of this process's environment."""
        self.run_id = run_id
        self._parent = os.getpid()
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(env) | {RUN_ID: run_id},
            start_new_session=True,
            preexec_fn=self._die_with_parent,
        )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        os.set_blocking(self._pipe, False)

    def _die_with_parent(self) -> None:
        die_with_parent()
        if os.getppid() != self._parent:  # it died before the request was made
            os._exit(1)

    def read(self, timeout: float, size: int = 1 << 16) -> bytes | None:
        """Bytes of the log as soon as there are any; ``b""`` after ``timeout`` seconds without, None at the end."""
        ready, _, _ = select.select([self._pipe], [], [], timeout)
        if not ready:
            return b""
        try:
            return os.read(self._pipe, size) or None
        except BlockingIOError:
            return b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """torchrun's exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> None:
        """Give torchrun up to ``seconds`` to end by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)

    def terminate(self) -> None:
        """SIGTERM: torchrun passes it on to the ranks; whoever it left behind gets it directly."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        else:
            self._signal_all(signal.SIGTERM)

    def kill(self) -> list[int]:
        """SIGKILL to every process of the run until none is left; return the pids that were found alive."""
        found: set[int] = set()
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            alive = self._signal_all(signal.SIGKILL)
            self._process.poll()
            if not alive:
                break
            found.update(alive)
            time.sleep(0.05)
        return sorted(found)

    def close(self) -> None:
        """Reap torchrun and close the pipe."""
        self.wait(10.0)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _signal_all(self, number: signal.Signals) -> list[int]:
        pids = processes_of(self.run_id)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids


def processes_of(run_id: str) -> list[int]:
    """Pids of the living processes that carry this run's id in their environment, this process excepted."""
    mark = f"{RUN_ID}={run_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            carries = mark in (entry / "environ").read_bytes().split(b"\0")
            # A zombie has an empty environment; between the two reads it may also have gone.
        except OSError:
            continue
        if carries:
            found.append(int(entry.name))
    return found


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; nothing elsewhere)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
