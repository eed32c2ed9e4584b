"""Memory and host in numbers, from rows, events and samples of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.samplers.contention import find_contention

if TYPE_CHECKING:
    from harness.logs import Event, Row

Sample = Mapping[str, Any]


def memory_summary(rows: Sequence[Row], events: Sequence[Event], samples: Sequence[Sample]) -> dict[str, Any]:
    """Peak memory by every source there is; each is a metric of its own.

    ``peak_gib``, ``peak_pct``: what the trainer's allocator had reserved at most, per rank, as printed. ``device``:
    what a monitor saw on the device, which is more (compiled code, scratchpad, the runtime). ``ranks_rss_gib``: host
    memory that is resident for all the run's processes together. What there is no source for is null.
    """
    return {
        "peak_gib": _largest([row.memory_gib for row in rows]),
        "peak_pct": _largest([row.memory_pct for row in rows]),
        "capacity_gib": _largest([event.data.get("gib") for event in events if event.kind == "device_capacity"]),
        "model_gib": _largest([event.data.get("gib") for event in events if event.kind == "model_memory"]),
        "device": _device_memory(samples),
        "ranks_rss_gib": _peak(samples, "host", "ranks", "rss_gib"),
        "rank_rss_gib": _peak(samples, "host", "ranks", "rss_largest_gib"),
    }


def _device_memory(samples: Sequence[Sample]) -> dict[str, Any] | None:
    """Highest use seen by the device's monitor: HBM per core on Trainium, memory per GPU on CUDA."""
    if any(sample.get("kind") == "neuron" for sample in samples):
        parts = ("hbm_gib", "tensors_gib", "code_gib", "scratchpad_gib", "constants_gib", "runtime_gib")
        by_core = {f"core_{part}": _peak(samples, "neuron", "neuron", part, "max") for part in parts}
        return {"source": "neuron-monitor", **by_core, "all_gib": _peak(samples, "neuron", "neuron", "hbm_gib", "sum")}
    if any(sample.get("kind") == "nvidia" for sample in samples):
        return {"source": "nvidia-smi", "gpu_gib": _peak(samples, "nvidia", "nvidia", "memory_used_gib", "max")}
    return None


def host_summary(samples: Sequence[Sample]) -> dict[str, Any] | None:
    """How busy the host was, and whether something disturbed the run; None without samples."""
    host = [sample for sample in samples if sample.get("kind") == "host"]
    if not host:
        return None
    return {
        "samples": len(host),
        "cpu_pct_mean": _mean(host, "host", "cpu_pct"),
        "load_1min_max": _peak(host, "host", "host", "load_1min"),
        "memory_used_gib_max": _peak(host, "host", "host", "memory_used_gib"),
        "swap_used_gib_max": _peak(host, "host", "host", "swap_used_gib"),
        "ranks_cores_mean": _mean(host, "ranks", "cores"),
        "harness_cores_mean": _mean(host, "harness", "cores"),
        "others_cores_mean": _mean(host, "others", "cores"),
        "contention": [found.message for found in find_contention(host)],
    }


def _at(sample: Sample, path: Sequence[str]) -> float | None:
    value: Any = sample
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _peak(samples: Sequence[Sample], kind: str, *path: str) -> float | None:
    return _largest([_at(sample, path) for sample in samples if sample.get("kind") == kind])


def _mean(samples: Sequence[Sample], *path: str) -> float | None:
    known = [value for sample in samples if (value := _at(sample, path)) is not None]
    return round(sum(known) / len(known), 3) if known else None


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
