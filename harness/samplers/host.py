"""What the host does while a run trains: one sample every few seconds, from a thread of the harness.

A sample is a dictionary for ``samples.jsonl``: ``{"time": ISO 8601 UTC, "kind": "host", "host": {...}, "ranks": {...},
"harness": {...}, "others": {...}}``. Numbers in nested objects become ``system/...`` metrics; lists (one entry per
core, the busiest processes) stay in the file.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from harness.rundir import now
from harness.samplers.processes import ProcessTimes, Usage, busiest, tree

GIB, MIB = 2**30, 2**20
LOOK_AROUND_CORES = 0.4
"""Cores used by others from which on it is worth asking every process who it is."""
LOOK_AROUND_S = 5.0
"""Not more often than this: on a large host that costs tens of milliseconds."""

Write = Callable[[dict[str, Any]], None]


class HostSampler:
    """Samples every ``interval_s`` seconds between ``start`` and ``stop``, and at ``stop`` if the last is not recent.

    ``write`` gets each sample, on the sampler's thread. ``root_pid`` is the process whose tree is the training
    (torchrun); it may be set later. Everything below this process but not below ``root_pid`` is the harness (the MLflow
    sender, this thread), everything else is others. What a look costs: tests/bench/bench_samplers.py.
    """

    def __init__(self, write: Write, *, root_pid: int | None = None, interval_s: float = 2.0) -> None:
        if not interval_s > 0:
            raise ValueError(f"the sampling interval is {interval_s} s; expected a number above 0")
        self.root_pid = root_pid
        self.errors = 0
        """Samples that could not be taken or written; sampling goes on, training is never disturbed."""
        self._write, self._interval_s = write, interval_s
        self._state = _State()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after a last sample; safe to call twice or without a start."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        self._state.begin()
        taken = 0.0
        while True:
            ended = self._stop.wait(self._interval_s)
            if ended and taken and time.monotonic() - taken < self._interval_s / 2:
                return  # rates over so short a time would be noise
            taken = time.monotonic()
            try:
                self._write(self._state.sample(self.root_pid))
            except (OSError, psutil.Error, ValueError):
                self.errors += 1
            if ended:
                return


class _State:
    """Counters of the last look; rates are differences between two looks."""

    def begin(self) -> None:
        self._at = time.monotonic()
        self._cpu = psutil.cpu_times(percpu=True)
        self._disk, self._net = psutil.disk_io_counters(), psutil.net_io_counters()
        self._ranks, self._harness, self._others = ProcessTimes(), ProcessTimes(), ProcessTimes()
        self._looked_around = -LOOK_AROUND_S

    def sample(self, root_pid: int | None) -> dict[str, Any]:
        at = time.monotonic()
        elapsed, self._at = at - self._at, at
        host, busy = self._host(elapsed)
        rank_pids = tree(root_pid) if root_pid is not None else set()
        own_pids = tree(os.getpid()) - rank_pids
        ranks, harness = self._ranks.look(rank_pids, elapsed), self._harness.look(own_pids, elapsed)
        others = max(0.0, busy - ranks.cores - harness.cores)
        return {
            "time": now(),
            "kind": "host",
            "host": host,
            "ranks": _usage(ranks),
            "harness": {"cores": round(harness.cores, 3), "rss_gib": round(harness.rss / GIB, 3)},
            "others": {"cores": round(others, 3), "busiest": self._look_around(at, others, rank_pids | own_pids)},
        }

    def _host(self, elapsed: float) -> tuple[dict[str, Any], float]:
        """The ``host`` part, and the cores that were busy."""
        cpu, disk, net = psutil.cpu_times(percpu=True), psutil.disk_io_counters(), psutil.net_io_counters()
        shares = [_busy_share(before, after) for before, after in zip(self._cpu, cpu, strict=False)]
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        host = {
            "cores": len(shares),
            "cpu_pct": round(100 * sum(shares) / max(1, len(shares)), 1),
            "cpu_pct_by_core": [round(100 * share) for share in shares],
            "load_1min": round(psutil.getloadavg()[0], 2),
            "memory_used_gib": round((memory.total - memory.available) / GIB, 3),
            "memory_available_gib": round(memory.available / GIB, 3),
            "swap_used_gib": round(swap.used / GIB, 3),
            "disk_read_mib_s": _rate(self._disk, disk, "read_bytes", elapsed),
            "disk_write_mib_s": _rate(self._disk, disk, "write_bytes", elapsed),
            "net_sent_mib_s": _rate(self._net, net, "bytes_sent", elapsed),
            "net_received_mib_s": _rate(self._net, net, "bytes_recv", elapsed),
            "numa_nodes": _numa_nodes(),
        }
        self._cpu, self._disk, self._net = cpu, disk, net
        return host, sum(shares)

    def _look_around(self, at: float, others: float, known: set[int]) -> list[dict[str, Any]]:
        if others < LOOK_AROUND_CORES or at - self._looked_around < LOOK_AROUND_S:
            return []
        elapsed, self._looked_around = at - self._looked_around, at
        found = busiest(known, self._others, elapsed, LOOK_AROUND_CORES)
        return [{"pid": busy.pid, "name": busy.name, "cores": round(busy.cores, 2)} for busy in found]


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "processes": usage.count,
        "cores": round(usage.cores, 3),
        "rss_gib": round(usage.rss / GIB, 3),
        "rss_largest_gib": round(usage.rss_largest / GIB, 3),
        "unpinned": usage.unpinned,
    }


def _busy_share(before: Any, after: Any) -> float:
    """Share of time that a core was not idle; 0 for an interval too short to tell."""
    total = sum(after[:8]) - sum(before[:8])  # user .. steal; guest time is already in user
    idle = (after.idle + getattr(after, "iowait", 0.0)) - (before.idle + getattr(before, "iowait", 0.0))
    return min(1.0, max(0.0, 1 - idle / total)) if total > 0 else 0.0


def _rate(before: Any, after: Any, name: str, elapsed: float) -> float | None:
    if before is None or after is None or elapsed <= 0:
        return None
    return round(max(0, getattr(after, name) - getattr(before, name)) / MIB / elapsed, 3)


def _numa_nodes() -> int | None:
    try:
        return sum(entry.startswith("node") and entry[4:].isdigit() for entry in os.listdir("/sys/devices/system/node"))
    except OSError:
        return None
