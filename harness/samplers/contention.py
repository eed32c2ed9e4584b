"""Whether something else on the host disturbed a run: pure functions over host samples.

Users measured throughput wrong by a factor of 2 to 5 because a compilation ran in the background, because more threads
wanted to run than there are cores, or because ranks wandered between NUMA nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.samplers.processes import COMPILERS

OTHERS_CORES = 0.95
"""One busy process keeps a core busy, less what the scheduler takes."""
CROWDED_CORES = 0.4
"""On a host whose cores are all busy, others take from the run what they use; from here on it is worth a warning."""
CROWDED_SHARE = 0.9
"""Share of busy cores from which on a host counts as having none to spare."""
LOAD_PER_CORE = 1.25
"""Runnable tasks per core from which on they wait for each other noticeably."""
SAMPLES_SHARE = 0.25
"""A disturbance must show in this share of the samples, and in two of them, or it is a passing one."""


@dataclass(frozen=True, kw_only=True)
class Contention:
    """One way in which the host disturbed the run."""

    what: str
    """compiling, others, load, numa."""
    message: str
    since: str
    """Time of the first sample that shows it."""
    samples: int
    of: int
    data: dict[str, Any] = field(default_factory=dict)


def find_contention(samples: Iterable[Mapping[str, Any]]) -> list[Contention]:
    """Every disturbance that the host samples of a run show; samples of other kinds are passed over."""
    host = [sample for sample in samples if sample.get("kind") == "host"]
    found = [_compiling(host), _others(host), _load(host), _numa(host)]
    return [contention for contention in found if contention is not None]


def _where(
    host: list[Mapping[str, Any]], shows: Callable[[Mapping[str, Any]], bool], *, at_least: int = 2
) -> list[Mapping[str, Any]]:
    shown = [sample for sample in host if shows(sample)]
    return shown if len(shown) >= max(at_least, SAMPLES_SHARE * len(host)) else []


def _compiling(host: list[Mapping[str, Any]]) -> Contention | None:
    """A compiler outside the run; one sample is enough, since processes are named every few seconds only."""
    shown = [sample for sample in host if any(name in COMPILERS for name, _ in _busiest(sample))]
    if not shown:
        return None
    names = sorted({name for sample in shown for name, _ in _busiest(sample) if name in COMPILERS})
    message = f"another process compiled while this run trained ({', '.join(names)}): throughput is not comparable"
    return _contention("compiling", message, shown, host, names=names)


def _others(host: list[Mapping[str, Any]]) -> Contention | None:
    def shows(sample: Mapping[str, Any]) -> bool:
        others = _number(sample, "others", "cores")
        crowded = _number(sample, "host", "cpu_pct") >= 100 * CROWDED_SHARE
        return others >= (CROWDED_CORES if crowded else OTHERS_CORES)

    shown = _where(host, shows)
    if not shown:
        return None
    cores = sorted(_number(sample, "others", "cores") for sample in shown)[len(shown) // 2]
    counted = Counter(busy for sample in shown for busy in {(name, pid) for name, pid in _busiest(sample)})
    named = [f"{name} (pid {pid})" for (name, pid), _ in counted.most_common(3)]
    who = f", most of it by {', '.join(named)}" if named else ""
    total = int(_number(host[0], "host", "cores"))
    message = f"other processes used {cores:.1f} of {total} cores{who}: throughput is not comparable"
    return _contention("others", message, shown, host, cores=cores, processes=named)


def _load(host: list[Mapping[str, Any]]) -> Contention | None:
    """More runnable tasks than cores; the first quarter of the run is passed over, since load lags by a minute."""
    late = host[len(host) // 4 :]
    shown = _where(
        late,
        lambda s: _number(s, "host", "load_1min") > LOAD_PER_CORE * max(1.0, _number(s, "host", "cores")),
        at_least=3,
    )
    if not shown:
        return None
    load, cores = max(_number(sample, "host", "load_1min") for sample in shown), int(_number(shown[0], "host", "cores"))
    message = f"load of {load:.1f} on {cores} cores: threads wait for each other; try a smaller OMP_NUM_THREADS"
    return _contention("load", message, shown, host, load=load, cores=cores)


def _numa(host: list[Mapping[str, Any]]) -> Contention | None:
    def shows(sample: Mapping[str, Any]) -> bool:
        return _number(sample, "host", "numa_nodes") > 1 and _number(sample, "ranks", "unpinned") > 1

    shown = _where(host, shows)
    if not shown:
        return None
    unpinned, nodes = int(_number(shown[-1], "ranks", "unpinned")), int(_number(shown[-1], "host", "numa_nodes"))
    message = (
        f"{unpinned} processes of the run may move between {nodes} NUMA nodes; users saw throughput decay within "
        "100 steps that way: pin them (numactl, taskset)"
    )
    return _contention("numa", message, shown, host, unpinned=unpinned, nodes=nodes)


def _contention(
    what: str, message: str, shown: list[Mapping[str, Any]], host: list[Mapping[str, Any]], **data: Any
) -> Contention:
    since = str(shown[0].get("time", ""))
    return Contention(what=what, message=message, since=since, samples=len(shown), of=len(host), data=data)


def _busiest(sample: Mapping[str, Any]) -> list[tuple[str, int]]:
    busy = (sample.get("others") or {}).get("busiest") or []
    return [(str(entry.get("name", "")), int(entry.get("pid", 0))) for entry in busy]


def _number(sample: Mapping[str, Any], part: str, name: str) -> float:
    """A number of a sample; 0 where it is missing, which no rule above takes for a disturbance."""
    value = (sample.get(part) or {}).get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0
