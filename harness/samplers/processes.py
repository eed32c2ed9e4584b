"""What the processes of a run use: their tree, resident memory and processor time."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

COMPILERS = (
    "neuronx-cc",
    "walrus_driver",
    "hlo2penguin",
    "cc1plus",
    "g++",
    "clang++",
    "ptxas",
    "cicc",
    "nvcc",
    "ninja",
)
"""Names of processes that compile: the Neuron compiler and its stages, and what inductor and CUDA extensions call."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a group of processes uses; ``cores`` is processor seconds per second since the last look."""

    count: int = 0
    cores: float = 0.0
    rss: int = 0
    """Resident memory, bytes, summed: pages shared between processes count once per process."""
    rss_largest: int = 0
    unpinned: int | None = None
    """Processes that may run on every core; None where the machine cannot tell."""


@dataclass(frozen=True, kw_only=True)
class Busy:
    """One process and the cores it keeps busy."""

    pid: int
    name: str
    cores: float


@dataclass
class ProcessTimes:
    """Processor time of processes between two looks. A process seen for the first time counts from the next look on."""

    seconds: dict[int, float] = field(default_factory=dict)
    """Processor seconds at the last look, by pid."""
    processes: dict[int, psutil.Process] = field(default_factory=dict)

    def look(self, pids: set[int], elapsed: float) -> Usage:
        """Usage of the living among ``pids`` over the last ``elapsed`` seconds."""
        count = rss = largest = unpinned = 0
        used, seconds, processes = 0.0, {}, {}
        all_cores = os.cpu_count() or 1
        for pid in pids:
            try:
                process = self.processes.get(pid) or psutil.Process(pid)
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info().rss
            except psutil.Error:
                continue
            seconds[pid], processes[pid] = times.user + times.system, process
            used += max(0.0, seconds[pid] - self.seconds.get(pid, seconds[pid]))
            count, rss, largest = count + 1, rss + memory, max(largest, memory)
            unpinned += _may_run_anywhere(pid, all_cores)
        self.seconds, self.processes = seconds, processes
        return Usage(
            count=count,
            cores=used / elapsed if elapsed > 0 else 0.0,
            rss=rss,
            rss_largest=largest,
            unpinned=unpinned if hasattr(os, "sched_getaffinity") else None,
        )


def _may_run_anywhere(pid: int, all_cores: int) -> bool:
    try:
        return len(os.sched_getaffinity(pid)) >= all_cores
    except (OSError, AttributeError):
        return False


def tree(root: int) -> set[int]:
    """``root`` and all its descendants. Linux tells a process's children; else every process names its parent."""
    if not Path(f"/proc/{root}/task/{root}/children").exists():
        try:
            return {root, *(child.pid for child in psutil.Process(root).children(recursive=True))}
        except psutil.Error:
            return set()
    found, queue = set(), [root]
    while queue:
        pid = queue.pop()
        found.add(pid)
        queue += [child for child in _children(pid) if child not in found]
    return found


def _children(pid: int) -> list[int]:
    """Children of every thread of a process: a child belongs to the thread that forked it."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        pass
    return found


def busiest(besides: set[int], times: ProcessTimes, elapsed: float, at_least: float) -> list[Busy]:
    """Processes outside ``besides`` that keep at least ``at_least`` cores busy or compile; reads every process once.

    A process that the last look did not see counts with its average since it was started.
    """
    found, seconds, wall = [], {}, time.time()
    for process in psutil.process_iter(["name", "cpu_times", "create_time"]):
        cpu, name, created = (process.info[key] for key in ("cpu_times", "name", "create_time"))
        if process.pid in besides or cpu is None or created is None:
            continue
        seconds[process.pid] = cpu.user + cpu.system
        if process.pid in times.seconds:
            cores = (seconds[process.pid] - times.seconds[process.pid]) / max(elapsed, 1e-3)
        else:
            cores = seconds[process.pid] / max(wall - created, 0.5)
        if cores >= at_least or (cores > 0.1 and name in COMPILERS):
            found.append(Busy(pid=process.pid, name=name or "", cores=cores))
    times.seconds = seconds
    return sorted(found, key=lambda busy: -busy.cores)[:5]
