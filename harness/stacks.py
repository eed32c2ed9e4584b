"""Where the processes of a run are stuck: their states, and their Python stacks where py-spy can be had."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

from harness.launch import environment_of, processes_of
from harness.privacy import redact_text

TOGETHER_S = 20.0
"""How long all dumps may take together; the processes are stuck anyway, but their end should not be put off."""


def dump_stacks(run_id: str) -> str:
    """A text with a section for each process of the run, ranks in order."""
    pids = sorted(processes_of(run_id), key=lambda pid: (_rank(pid) is not None, _rank(pid) or 0, pid))
    tool, deadline = py_spy(), time.monotonic() + TOGETHER_S
    dumps = {pid: _start(tool, pid) for pid in pids} if tool else {}
    sections = []
    for pid in pids:
        rank = _rank(pid)
        head = f"== {f'rank {rank}' if rank is not None else 'launcher'}, pid {pid}: {state(pid)}"
        stack = _finish(dumps[pid], deadline) if pid in dumps else "py-spy is not installed: no stack\n"
        sections.append(f"{head}\n{stack}")
    return redact_text("\n".join(sections) or "no process of this run is left\n")


def py_spy() -> str | None:
    """The py-spy of this Python's environment, else the one on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def state(pid: int) -> str:
    """What the kernel says of a process: running, sleeping, stopped, ... and where in the kernel it waits."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        text = next(line for line in lines if line.startswith("State:")).split(maxsplit=1)[1]
        waits = Path(f"/proc/{pid}/wchan").read_text().strip("0\n")
        return f"{text}{f' in {waits}' if waits else ''}"
    return "gone"


def _rank(pid: int) -> int | None:
    rank = environment_of(pid).get("RANK", "")
    return int(rank) if rank.isdigit() else None


def _start(tool: str, pid: int) -> subprocess.Popen[str]:
    # Without --nonblocking py-spy would wait for a stopped process for ever.
    return subprocess.Popen(
        [tool, "dump", "--nonblocking", "--pid", str(pid)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def _finish(dump: subprocess.Popen[str], deadline: float) -> str:
    try:
        return dump.communicate(timeout=max(0.1, deadline - time.monotonic()))[0]
    except subprocess.TimeoutExpired:
        dump.kill()
        return f"py-spy did not answer in time\n{dump.communicate()[0]}"
