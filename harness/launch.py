"""The torchrun command and its processes: started together, read through pipes, ended together.

torchrun starts every rank in a session of its own, so signalling a process group does not reach them. Every process of
a run therefore carries ``PILOT_RUN_ID`` in its environment, and the harness finds them by it. Each also asks the kernel
to be killed when its parent dies, so that nothing survives a killed harness.

The harness reads torchrun through one pipe and every rank through another, which the rank opens first thing
(``join_run``). What a rank prints therefore reaches a disk only after it has been scrubbed and bounded; the files of
torchrun's ``--tee`` hold what was printed before, and take over where a rank does not join.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

RUN_ID = "PILOT_RUN_ID"
SPEC = "PILOT_SPEC"
HARNESS = "PILOT_HARNESS_PID"
OUTPUTS = "PILOT_OUTPUTS"
"""For each local rank the file to print to, separated by blanks."""
PIPE_BYTES = 1 << 18
"""How much a rank can print ahead of the harness before it has to wait."""
_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER, _PR_SET_PTRACER_ANY = 0x59616D61, ctypes.c_ulong(-1)
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def torchrun() -> str:
    """The torchrun of this Python's environment, else the one on PATH."""
    beside = Path(sys.executable).with_name("torchrun")
    return str(beside) if beside.exists() else shutil.which("torchrun") or "torchrun"


ONE_NODE = ("--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0")


def torchrun_command(
    *, num_ranks: int, log_dir: Path | str, arguments: Sequence[str], rendezvous: Sequence[str] = ONE_NODE
) -> list[str]:
    """One node's command: rank 0 on the console with its prefix, every rank's output and error file in ``log_dir``."""
    return [
        torchrun(),
        f"--nproc_per_node={num_ranks}",
        *rendezvous,
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

    def __init__(self, command: Sequence[str], *, run_id: str, env: Mapping[str, str], num_ranks: int = 0) -> None:
        """Start the command in a session of its own with ``env`` on top of this process's environment.

        Raises:
            OSError: it cannot be started.
        """
        self.run_id = run_id
        self._ranks = [_Pipe() for _ in range(num_ranks)] if Path("/proc/self/fd").exists() else []
        own = {RUN_ID: run_id, HARNESS: str(os.getpid()), OUTPUTS: " ".join(pipe.path for pipe in self._ranks)}
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(env) | own,
            start_new_session=True,
            preexec_fn=dying_with_parent(),
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._sources: dict[int, int | None] = {self._process.stdout.fileno(): None}
        self._sources |= {pipe.read_end: rank for rank, pipe in enumerate(self._ranks)}
        self._poll = select.poll()
        for descriptor in self._sources:
            self._poll.register(descriptor, select.POLLIN)

    def read(self, timeout: float, size: int = 1 << 16) -> list[tuple[int | None, bytes]]:
        """What was printed, as soon as there is any: pairs of the local rank (None: torchrun) and bytes.

        Empty after ``timeout`` seconds of silence. Once torchrun has closed its end (``ended``) only ranks are heard.
        """
        chunks = []
        for descriptor, _ in self._poll.poll(timeout * 1000):
            try:
                data = os.read(descriptor, size)
            except BlockingIOError:
                continue
            if data:
                chunks.append((self._sources[descriptor], data))
            else:
                self._poll.unregister(descriptor)
                del self._sources[descriptor]
        return chunks

    @property
    def ended(self) -> bool:
        """Whether torchrun, and all who inherited its output, have closed it."""
        return None not in self._sources.values()

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
        """Reap torchrun and close the pipes."""
        self.wait(10.0)
        assert self._process.stdout is not None
        self._process.stdout.close()
        for pipe in self._ranks:
            pipe.close()

    def _signal_all(self, number: signal.Signals) -> list[int]:
        pids = processes_of(self.run_id)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids


class _Pipe:
    """A pipe that other processes open by name, through this process's directory of descriptors.

    The write end stays open here, so that the read end is at no end before the harness says so.
    """

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self.path = f"/proc/{os.getpid()}/fd/{self.write_end}"
        os.set_blocking(self.read_end, False)
        with contextlib.suppress(OSError):  # over the user's limit: the pipe stays smaller
            fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def close(self) -> None:
        os.close(self.read_end)
        os.close(self.write_end)


def processes_of(run_id: str) -> list[int]:
    """Pids of the living processes that carry this run's id in their environment, this process excepted."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and belongs_to(pid, run_id)]


def belongs_to(pid: int, run_id: str) -> bool:
    """Whether a process carries this run's id. A zombie has an empty environment and counts as gone."""
    return environment_of(pid).get(RUN_ID) == run_id


def environment_of(pid: int) -> dict[str, str]:
    """With what environment a process was started; empty for one that is gone or someone else's."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in entries)
    return {name: value for name, equals, value in pairs if equals}


# -- what the processes do for themselves -----------------------------------------------------------------------------


def join_run() -> None:
    """The first thing that a rank does: die with torchrun, let a debugger look on, print to the harness's pipe.

    Does nothing in a process that was not started by a harness.
    """
    run_id = os.environ.get(RUN_ID)
    if run_id is None:
        return
    die_with_parent()
    parent = os.getppid()
    if not belongs_to(parent, run_id) and str(parent) != os.environ.get(HARNESS):  # it died before the request was made
        os._exit(1)
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)  # else py-spy sees nothing where Yama forbids it
    outputs, rank = os.environ.get(OUTPUTS, "").split(), int(os.environ.get("LOCAL_RANK", "0"))
    if rank < len(outputs):
        with contextlib.suppress(OSError):
            descriptor = os.open(outputs[rank], os.O_WRONLY)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.close(descriptor)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; nothing elsewhere)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def dying_with_parent() -> Callable[[], None]:
    """For ``preexec_fn``: the child dies with this process, also if that is gone before the child could say so."""
    parent = os.getpid()

    def ask() -> None:
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)

    return ask
