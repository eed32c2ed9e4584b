"""What executes a kernel in this process, and how often it did (no torch, no NKI until a device is asked for).

Three backends stand behind every op:

* ``neuron``     the NKI kernel, compiled, on the device
* ``simulator``  the NKI kernel's source on the CPU, slow, for checks
* ``reference``  the same mathematics in PyTorch, for rehearsals

Nothing falls back: a backend that is asked for and absent is an error. A call is counted where the work was done, under
the backend that did it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

BACKENDS = ("reference", "simulator", "neuron")
DEFAULT_LNC = 2
"""Trainium2's default (AWS: Logical NeuronCore configuration)."""


@dataclass
class Calls:
    """Executed calls of one kernel on one backend."""

    forward: int = 0
    backward: int = 0


@dataclass(frozen=True)
class Execution:
    """How kernels run in this process."""

    backend: str
    lnc: int


_lock = threading.Lock()
_calls: dict[tuple[str, str], Calls] = {}
_requested: list[str] = []
_execution: Execution | None = None


def use_backend(name: str, *, lnc: int | None = None) -> Execution:
    """Choose what executes kernels from now on.

    Args:
        name: reference, simulator, neuron, or auto: neuron where there is one, else reference.
        lnc: physical cores per logical NeuronCore; default PILOT_KERNEL_LNC, NEURON_LOGICAL_NC_CONFIG, else 2.

    Raises:
        ValueError: no such backend, or neither 1 nor 2 cores.
        RuntimeError: the backend is not there.
    """
    global _execution
    from kernels.limits import sequence_multiple

    if name not in (*BACKENDS, "auto"):
        raise ValueError(f"kernel backend {name!r}: one of auto, {', '.join(BACKENDS)} was expected")
    cores = _default_lnc() if lnc is None else lnc
    sequence_multiple(cores)
    if name in ("auto", "neuron"):
        from kernels.nki_api import why_no_neuron

        absent = why_no_neuron()
        if name == "neuron" and absent:
            raise RuntimeError(f"kernel backend neuron is not available: {absent}. Use reference or simulator instead")
        name = "reference" if absent else "neuron"
    if name == "simulator":
        from kernels.nki_api import prepare_simulator

        prepare_simulator()
    _execution = Execution(backend=name, lnc=cores)
    return _execution


def execution() -> Execution:
    """The choice in force; the first question takes it from PILOT_KERNEL_BACKEND (default auto)."""
    return _execution or use_backend(os.environ.get("PILOT_KERNEL_BACKEND", "auto"))


@contextmanager
def isolated(name: str, *, lnc: int | None = None) -> Iterator[Execution]:
    """Use a backend inside the block only, with counts of its own: for checks."""
    global _execution, _calls, _requested
    before = _execution, _calls, _requested
    _calls, _requested = {}, []
    try:
        yield use_backend(name, lnc=lnc)
    finally:
        _execution, _calls, _requested = before


def _default_lnc() -> int:
    value = os.environ.get("PILOT_KERNEL_LNC") or os.environ.get("NEURON_LOGICAL_NC_CONFIG") or str(DEFAULT_LNC)
    if value not in ("1", "2"):
        raise ValueError(f"LNC={value!r} in the environment: 1 or 2 was expected")
    return int(value)


# -- counting -----------------------------------------------------------------------------------------------------


def request(kernel: str) -> None:
    """Note that a model was built with this kernel, so that a report mentions it even if it never runs."""
    with _lock:
        if kernel not in _requested:
            _requested.append(kernel)


def count(kernel: str, direction: str, backend: str) -> None:
    """Note one completed call; ``direction`` is forward or backward."""
    with _lock:
        calls = _calls.setdefault((kernel, backend), Calls())
        setattr(calls, direction, getattr(calls, direction) + 1)


def calls(kernel: str) -> Calls:
    """Completed calls of a kernel over all backends."""
    with _lock:
        found = [value for (name, _), value in _calls.items() if name == kernel]
    return Calls(sum(value.forward for value in found), sum(value.backward for value in found))


def reset_counts() -> None:
    """Forget calls and requests: for several trainings in one process."""
    with _lock:
        _calls.clear()
        _requested.clear()


def report_lines() -> list[str]:
    """One line per kernel and backend that did the work; a requested kernel that never ran has zeros."""
    with _lock:
        done = {key: Calls(value.forward, value.backward) for key, value in _calls.items()}
        idle = [kernel for kernel in _requested if all(kernel != name for name, _ in done)]
    if idle:
        done |= {(kernel, execution().backend): Calls() for kernel in idle}
    return [
        f"[pilot] kernel {kernel} backend={backend} forward={value.forward} backward={value.backward}"
        for (kernel, backend), value in sorted(done.items())
    ]


def report(emit: Callable[[str], None] = print) -> None:
    """Write the calls of this process, one line per kernel: ``[pilot] kernel nki_rope backend=... forward=...``."""
    for line in report_lines():
        emit(line)
