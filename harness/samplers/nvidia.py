"""GPU samples from ``nvidia-smi`` in its loop mode: one sample per tick, all devices in it."""

from __future__ import annotations

from typing import Any

from harness.rundir import now
from harness.samplers.stream import Monitor, Warn, Write

FIELDS = {
    "index": "index",
    "utilization.gpu": "utilization_pct",
    "memory.used": "memory_used_gib",
    "memory.total": "memory_total_gib",
    "power.draw": "power_w",
    "clocks.sm": "sm_clock_mhz",
    "temperature.gpu": "temperature_c",
}
"""What is asked of nvidia-smi, and what it is called in a sample; memory comes in MiB."""


class NvidiaSmi(Monitor):
    """Samples ``{"time", "kind": "nvidia", "nvidia": {"devices": n, "utilization_pct": {}, ...}, "by_device": [...]}``.

    Numbers are the lowest, mean and highest over the devices; ``by_device`` has them all. A value that a device does
    not report ("[N/A]") is left out, never 0.
    """

    name = "nvidia-smi"

    def __init__(self, write: Write, warn: Warn, *, interval_s: float = 2.0, command: str = "nvidia-smi") -> None:
        query = f"--query-gpu={','.join(FIELDS)}"
        loop = f"--loop-ms={round(1000 * interval_s)}"
        super().__init__([command, query, "--format=csv,noheader,nounits", loop], write, warn)
        self._devices: list[dict[str, Any]] = []
        self._count: int | None = None
        """Devices of the machine, known once the first tick is over."""
        self._rejected = 0

    def read(self, line: str) -> list[dict[str, Any]]:
        device = parse_line(line)
        if device is None:
            self._rejected += bool(line.strip())
            return []
        done = []
        if any(device["index"] == other["index"] for other in self._devices):  # the next tick has begun
            done = self.rest()
        self._devices.append(device)
        return done + (self.rest() if len(self._devices) == self._count else [])

    def rest(self) -> list[dict[str, Any]]:
        devices, self._devices = self._devices, []
        if not devices:
            return []
        self._count = len(devices)
        return [{"time": now(), "kind": "nvidia", "nvidia": summarise(devices), "by_device": devices}]

    def complaint(self) -> str:
        return f"{self._rejected} lines of nvidia-smi were not understood" if self._rejected else ""


def parse_line(line: str) -> dict[str, Any] | None:
    """One device at one tick; None for a line that is no row of ``FIELDS``."""
    values = [value.strip() for value in line.split(",")]
    if len(values) != len(FIELDS) or not values[0].isdigit():
        return None
    device: dict[str, Any] = {"index": int(values[0])}
    for name, value in zip(list(FIELDS.values())[1:], values[1:], strict=True):
        try:
            number = float(value)
        except ValueError:
            continue  # "[N/A]", "[Not Supported]", "[Unknown Error]"
        device[name] = round(number / 1024, 3) if name.startswith("memory_") else number
    return device


def summarise(devices: list[dict[str, Any]]) -> dict[str, Any]:
    """Lowest, mean and highest of every number over the devices that report it."""
    summary: dict[str, Any] = {"devices": len(devices)}
    for name in list(FIELDS.values())[1:]:
        known = [device[name] for device in devices if name in device]
        if known:
            summary[name] = {"min": min(known), "mean": round(sum(known) / len(known), 3), "max": max(known)}
    return summary
