"""The one place that imports ``nki`` and ``torch_neuronx``, and launches kernels.

Both names exist on the public package index as placeholders that raise when imported, so presence is tested by a real
import.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from kernels import backend


def why_no_neuron() -> str | None:
    """Why kernels cannot run on a Neuron device in this process; None if they can."""
    for module in ("torch_neuronx", "nki"):
        problem = _import_problem(module)
        if problem:
            return problem
    from kernels import sim

    return "import nki gives the CPU simulator in this process" if sim.is_installed() else None


@functools.cache
def _import_problem(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        return f"import {module} fails ({str(error).splitlines()[0]})"
    return None


def prepare_simulator() -> None:
    """Make ``import nki`` work: the official package where it is installed, else ours. Both simulate a Trainium2."""
    from kernels import sim

    os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")  # the official one would take a trn3
    if not sim.is_installed() and _import_problem("nki"):
        sim.install()
        _import_problem.cache_clear()


def kernel_module(name: str) -> ModuleType:
    """Import a module of kernel source, e.g. ``kernels.rope.kernel``; call after the backend was chosen."""
    return importlib.import_module(name)


def launch(kernel: Any, *args: Any) -> Any:
    """Run an ``@nki.jit`` kernel on the backend in force, on the cores of one logical NeuronCore.

    Tensors are passed as they are; what the kernel returns is what counts, since a framework may hand back new tensors
    for the ones that the kernel wrote.

    Raises:
        RuntimeError: the backend in force executes no kernels.
    """
    chosen = backend.execution()
    if chosen.backend == "neuron":
        return kernel[chosen.lnc](*args)
    if chosen.backend == "simulator":
        import nki

        return nki.simulate(kernel[chosen.lnc])(*args)
    raise RuntimeError(f"kernel backend {chosen.backend} executes no NKI kernels")


def empty_like(tensor: Any) -> Any:
    """An output for a kernel to fill; on the simulator it holds NaN, so that what a kernel leaves out is seen."""
    return empty(tensor.shape, tensor.dtype, tensor.device)


def empty(shape: Any, dtype: Any, device: Any) -> Any:
    """An output of the given shape, as :func:`empty_like`."""
    import torch

    if backend.execution().backend == "simulator":
        return torch.full(tuple(shape), float("nan"), dtype=dtype, device=device)
    return torch.empty(tuple(shape), dtype=dtype, device=device)


def op_registrar() -> Callable[..., Any]:
    """What registers a torch op: ``torch_neuronx.nki_op`` on the device, else ``torch.library.custom_op``.

    Both take ``name, mutates_args=`` and return an object with ``register_fake`` and ``register_autograd``.
    """
    if backend.execution().backend == "neuron":
        import torch_neuronx

        return torch_neuronx.nki_op
    import torch

    return torch.library.custom_op
