"""Want of memory, recognised: on the host, on the device, in an allocator; and told apart from what looks like it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

LOOK_ALIKES = re.compile(
    r"out of resource: triton"  # autotuning: one candidate needs too much shared memory and is rejected
    r"|memory mapping failed with OOM"  # expandable segments fall back to another way
    r"|OOM errors thrown|memory allocation retries"  # a count that torchtitan prints, of errors that were survived
)
"""Lines that speak of memory and are no failure (facts collected from published torchtitan logs)."""

SIGNS: tuple[tuple[str, str], ...] = (
    ("device", r"(?:torch\.|^|[\s:])(?:cuda\.)?OutOfMemoryError\b"),
    ("device", r"(?:CUDA|HIP|XPU) (?:error: )?out of memory"),
    ("device", r"UR_RESULT_ERROR_OUT_OF_(?:RESOURCES|DEVICE_MEMORY)"),
    ("device", r"NRT allocation failed|TDRV:log_dev_mem\s+Failed to allocate|NRT_RESOURCE"),
    ("device", r"Failed to allocate .* on device"),
    ("host", r"UR_RESULT_ERROR_OUT_OF_HOST_MEMORY"),
    ("host", r"[Oo]ut of memory: Killed process|oom-kill:|oom_reaper|Memory cgroup out of memory"),
    ("host", r"DataLoader worker .* is killed by signal: Killed"),
    ("allocator", r"DefaultCPUAllocator: (?:can't|not enough)|std::bad_alloc|\bMemoryError\b"),
    ("allocator", r"Cannot allocate memory|\[Errno 12\]|posix_memalign|error code 12"),
)
_SIGNS = tuple((where, re.compile(pattern)) for where, pattern in SIGNS)
_IN_WORDS = {
    "host": "out of host memory",
    "device": "out of device memory",
    "allocator": "out of host memory (allocation refused)",
}


@dataclass(frozen=True)
class OutOfMemory:
    """``where``: host (the kernel killed a process), device, or allocator (the host refused an allocation)."""

    where: str
    evidence: str
    """The line that says so."""

    def said(self, text: str) -> str:
        """A failure in words: the finding first, what was said after it."""
        return f"{_IN_WORDS[self.where]}: {text if self.evidence in text else f'{text}; {self.evidence}'}"


def out_of_memory(text: str) -> OutOfMemory | None:
    """The first line of a failure that says that memory ran out; None if none does."""
    for line in text.splitlines():
        if not LOOK_ALIKES.search(line):
            for where, pattern in _SIGNS:
                if pattern.search(line):
                    return OutOfMemory(where, line.strip()[:200])
    return None


class KernelKills:
    """Which processes the kernel has killed for want of memory since this object was made.

    Its log names them, but only the privileged may read it; else its count of them for the whole host has to do.
    """

    def __init__(self) -> None:
        self._count = _oom_kills()
        try:
            self._log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._log, 0, os.SEEK_END)
        except OSError:
            self._log = -1
        self._victims: set[int] = set()

    def evidence(self, pid: int | None) -> str:
        """What the kernel says of this process's death; empty where it was not for want of memory."""
        if self._log >= 0:
            self._read_log()
            return f"the kernel killed process {pid} for want of memory" if pid in self._victims else ""
        others = _oom_kills() - self._count
        return f"the kernel killed {others} on this host for want of memory meanwhile" if others else ""

    def close(self) -> None:
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def _read_log(self) -> None:
        """One record a read; one that was overwritten before it could be read is passed over."""
        while True:
            try:
                record = os.read(self._log, 8192)
            except BrokenPipeError:
                continue
            except OSError:  # nothing more
                return
            if not record:
                return
            self._victims.update(int(pid) for pid in _VICTIM.findall(record))


_VICTIM = re.compile(rb"Killed process (\d+)")


def _oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since this host started; 0 where it does not say."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    except (OSError, ValueError):
        pass
    return 0
