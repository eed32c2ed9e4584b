"""Samples of the host and its accelerators while a run trains.

``samplers_for(device, write, warn)`` gives what a platform has; each has ``start()`` and ``stop()``. A monitor that is
absent or dies is one warning, never a failed run.
"""

from __future__ import annotations

from harness.samplers.contention import Contention, find_contention
from harness.samplers.host import HostSampler
from harness.samplers.neuron import NeuronMonitor
from harness.samplers.nvidia import NvidiaSmi
from harness.samplers.stream import Monitor, Warn, Write

__all__ = ["Contention", "HostSampler", "Monitor", "NeuronMonitor", "NvidiaSmi", "find_contention", "samplers_for"]


def samplers_for(
    device: str, write: Write, warn: Warn, *, root_pid: int | None = None, interval_s: float = 2.0
) -> list[HostSampler | Monitor]:
    """The samplers of a platform, not started: the host's always, and that of ``device`` (neuron, cuda or cpu).

    ``write`` takes each sample (``JsonLines.append`` of ``samples.jsonl``), ``warn`` each warning (``Recorder.note``).
    """
    samplers: list[HostSampler | Monitor] = [HostSampler(write, root_pid=root_pid, interval_s=interval_s)]
    if device == "neuron":
        samplers.append(NeuronMonitor(write, warn))
    elif device == "cuda":
        samplers.append(NvidiaSmi(write, warn, interval_s=interval_s))
    return samplers
