"""Trainium samples from ``neuron-monitor``: one JSON object per line, read leniently.

Source of the fields: AWS Neuron SDK, tools, "Neuron Monitor User Guide". Any part may be missing: a version that names
a counter differently, an idle device (``neuron_runtime_data: []``), a runtime that reports an ``error``. What is
missing stays out of the sample; nothing becomes 0, and nothing is carried over from an earlier sample.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from harness.rundir import now
from harness.samplers.stream import Monitor, Warn, Write

GIB = 2**30
BREAKDOWN = {
    "tensors": "tensors_gib",
    "model_code": "code_gib",
    "model_shared_scratchpad": "scratchpad_gib",
    "constants": "constants_gib",
    "runtime_memory": "runtime_gib",
}
"""Parts of ``neuroncore_memory_usage``, bytes of device memory that a core uses, and their names in a sample."""


class NeuronMonitor(Monitor):
    """Samples ``{"time", "kind": "neuron", "neuron": {...}, "by_core": [...]}``; see ``parse_report``."""

    name = "neuron-monitor"

    def __init__(self, write: Write, warn: Warn, *, command: str = "neuron-monitor") -> None:
        super().__init__([command], write, warn)
        self._rejected = 0

    def read(self, line: str) -> list[dict[str, Any]]:
        if not line.strip():
            return []
        try:
            report = json.loads(line)
        except json.JSONDecodeError:
            report = None
        if not isinstance(report, dict):
            self._rejected += 1
            return []
        return [{"time": now(), "kind": "neuron", **parse_report(report)}]

    def complaint(self) -> str:
        return f"{self._rejected} lines of neuron-monitor were no JSON object" if self._rejected else ""


def parse_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """``neuron`` (numbers over all cores) and ``by_core`` (a list, one entry per core in use) of one report.

    Per core: ``core``, ``utilization_pct``, ``flops_per_s``, ``hbm_gib`` and its parts. Over cores: how many are in
    use, lowest, mean and highest utilization, sum and highest HBM; over runtimes: device and host memory, errors, and
    the latency of executions in seconds.
    """
    runtimes = [runtime for runtime in _list(report, "neuron_runtime_data") if isinstance(runtime, Mapping)]
    cores: dict[int, dict[str, Any]] = {}
    totals: dict[str, float] = {}
    latency: list[float] = []
    errors: list[str] = []
    for runtime in runtimes:
        if runtime.get("error"):
            errors.append(str(runtime["error"]))
        body = _map(runtime, "report")
        for core, values in _cores(body):
            cores.setdefault(core, {"core": core}).update(values)
        _add_totals(body, totals, latency)
    by_core = [cores[core] for core in sorted(cores)]
    neuron: dict[str, Any] = {"runtimes": len(runtimes), "cores_in_use": len(by_core), **_over_cores(by_core), **totals}
    if latency:
        neuron["latency_p50_s_max"] = max(latency)
    hardware = _map(report, "neuron_hardware_info")
    for name in ("neuron_device_count", "neuroncore_per_device_count", "logical_neuroncore_config"):
        if _number(hardware, name) is not None:
            neuron[name.removeprefix("neuron_")] = hardware[name]
    memory = _number(hardware, "neuron_device_memory_size")
    if memory is not None:
        neuron["device_memory_gib"] = round(memory / GIB, 3)
    return {"neuron": neuron, "by_core": by_core} | ({"errors": errors} if errors else {})


def _cores(body: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    for name, counters in _map(body, "neuroncore_counters", "neuroncores_in_use").items():
        if name.isdigit() and isinstance(counters, Mapping):
            found = {
                "utilization_pct": _number(counters, "neuroncore_utilization"),
                "flops_per_s": _number(counters, "flops"),
            }
            yield int(name), {key: value for key, value in found.items() if value is not None}
    usage = _map(body, "memory_used", "neuron_runtime_used_bytes", "usage_breakdown", "neuroncore_memory_usage")
    for name, parts in usage.items():
        if name.isdigit() and isinstance(parts, Mapping):
            known = {ours: _number(parts, theirs) for theirs, ours in BREAKDOWN.items()}
            gib = {ours: round(value / GIB, 4) for ours, value in known.items() if value is not None}
            yield int(name), {"hbm_gib": round(sum(gib.values()), 4), **gib} if gib else {}


def _over_cores(by_core: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("utilization_pct", "flops_per_s"):
        values = [core[name] for core in by_core if name in core]
        if values:
            found[name] = {"min": min(values), "mean": round(sum(values) / len(values), 3), "max": max(values)}
    for name in ("hbm_gib", *BREAKDOWN.values()):
        values = [core[name] for core in by_core if name in core]
        if values:
            found[name] = {"sum": round(sum(values), 3), "max": max(values)}
    return found


def _add_totals(body: Mapping[str, Any], totals: dict[str, float], latency: list[float]) -> None:
    used = _map(body, "memory_used", "neuron_runtime_used_bytes")
    for theirs, ours in (("neuron_device", "device_used_gib"), ("host", "host_used_gib")):
        value = _number(used, theirs)
        if value is not None:
            totals[ours] = round(totals.get(ours, 0.0) + value / GIB, 3)
    stats = _map(body, "execution_stats")
    for part in ("error_summary", "execution_summary"):
        for name, value in _map(stats, part).items():
            if _number({name: value}, name) is not None:
                key = f"{'errors' if part == 'error_summary' else 'executions'}_{name}"
                totals[key] = totals.get(key, 0) + value
    p50 = _number(_map(stats, "latency_stats", "total_latency"), "p50")
    if p50 is not None:
        latency.append(p50)


def _map(value: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """The nested object under ``keys``; empty if any of it is missing, null or something else."""
    for key in keys:
        found = value.get(key)
        if not isinstance(found, Mapping):
            return {}
        value = found
    return value


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    found = value.get(key)
    return found if isinstance(found, list) else []


def _number(value: Mapping[str, Any], key: str) -> float | None:
    found = value.get(key)
    return found if isinstance(found, (int, float)) and not isinstance(found, bool) else None
