"""Lets the unmodified torchtitan 0.3.0 wheel train on CPU; does nothing where torch finds an accelerator.

torchtitan asks torch for "the accelerator" while its modules are imported and takes "cuda" where there is none. What
stands in the way, and the smallest remedy for each:

1. device type and module: answered "cpu" only while ``torchtitan.tools.utils`` is imported; the module is torch.cpu
   with the handful of functions that it lacks (device name, properties, memory statistics).
2. ``torchtitan.distributed.minimal_async_ep.kernels`` imports triton at module level: that one module is replaced by
   functions that raise when called. (A stand-in for triton itself would break torch's compiler.)
3. gloo has no pre-multiplied sum, which FSDP's averaging reduction asks for: ``use_plain_sums`` selects the sum.
4. ``torch.distributed.set_timeout`` is public only from torch 2.14 on: aliased to the function it wraps.
5. peak FLOP/s: torchtitan assumes an A100 for a device it does not know. A CPU has no meaningful peak here, so it is
   infinite and every rehearsal prints an MFU of 0 % rather than a wrong guess.

6. gloo's threads outlive the process group; one that reaches for Python while the interpreter winds up aborts the
   process, about once in a hundred runs and always after all work is done: ``leave`` ends without winding up.

Attention and sharding need choices of configuration, not shims: see ``native`` and ``TitanSpec.resolved_spmd_backend``.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

TRITON_MODULE = "torchtitan.distributed.minimal_async_ep.kernels"


def accelerator() -> str | None:
    """Type of the accelerator that torch finds ("cuda", "neuron", ...), as torchtitan asks it; None: only CPU."""
    import torch._utils

    return torch._utils._get_available_device_type()


def install() -> bool:
    """Prepare this process for torchtitan on CPU; the first call must come before torchtitan is imported.

    Returns:
        True if the process is prepared, False (and nothing was touched) where torch finds an accelerator.
    """
    if accelerator() is not None:
        return False
    if (imported := sys.modules.get("torchtitan.tools.utils")) is not None:
        assert imported.device_type == "cpu", "torchtitan was imported before harness.titan.cpu.install"
        return True
    if importlib.util.find_spec("triton") is None:
        sys.modules[TRITON_MODULE] = _refusing_module(TRITON_MODULE, "triton")
    _alias_set_timeout()
    device = cpu_device_module()
    utils = _import_utils(device)
    assert utils.device_type == "cpu", f"torchtitan still chose {utils.device_type}"
    assert utils.device_module is device
    utils.get_peak_flops = lambda device_name: float("inf")
    return True


def use_plain_sums(model: Any) -> None:
    """Make every FSDP module of ``model`` reduce gradients by summing, which gloo can do.

    torchtitan has set the gradient divisor to 1 before, so a sum is exactly what it asks for.
    """
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)


def leave() -> NoReturn:
    """End a process whose training is done, with exit code 0 and without the interpreter's finalization.

    Seen without it (torch 2.13, two ranks, rank 1, which does not wait as rank 0 does): "Process group destroyed", then
    "terminate called without an active exception" and SIGABRT, so that torchrun calls a complete training failed.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def cpu_device_module() -> ModuleType:
    """torch.cpu with the functions of an accelerator's module that torchtitan calls; memory is the process's own."""
    import torch

    module = ModuleType("harness.titan.cpu_device")
    module.__getattr__ = lambda name: getattr(torch.cpu, name)  # type: ignore[method-assign]
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    functions = {
        "set_device": lambda device: None,
        "device_count": lambda: 1,  # every rank then uses index 0
        "current_device": lambda: 0,  # torch.cpu answers "cpu", which torch.distributed.barrier rejects
        "get_device_name": lambda device=None: "cpu",
        "get_device_properties": lambda device=None: SimpleNamespace(name="cpu", total_memory=total),
        "reset_peak_memory_stats": lambda device=None: _reset_peak_resident_bytes(),
        "empty_cache": lambda: None,
        "memory_stats": lambda device=None: _memory_stats(),
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module


def _import_utils(device: ModuleType) -> ModuleType:
    """Import torchtitan.tools.utils while torch answers "cpu" to its two questions; the answers are put back."""
    import torch._utils as torch_utils

    get_type, get_module = torch_utils._get_available_device_type, torch_utils._get_device_module
    torch_utils._get_available_device_type = lambda: "cpu"
    torch_utils._get_device_module = lambda kind: device if kind == "cpu" else get_module(kind)
    try:
        return importlib.import_module("torchtitan.tools.utils")
    finally:
        torch_utils._get_available_device_type, torch_utils._get_device_module = get_type, get_module


def _alias_set_timeout() -> None:
    import torch.distributed as dist

    if not hasattr(dist, "set_timeout"):
        from torch.distributed.distributed_c10d import _set_pg_timeout

        dist.set_timeout = _set_pg_timeout  # type: ignore[attr-defined]


def _refusing_module(name: str, needs: str) -> ModuleType:
    """A module any name can be imported from, whose functions raise when called."""
    module = ModuleType(name)

    def attribute(attribute_name: str) -> Any:
        if attribute_name.startswith("__"):
            raise AttributeError(attribute_name)

        def refuse(*args: object, **kwargs: object) -> None:
            raise RuntimeError(f"{name}.{attribute_name} needs {needs}, which is not installed")

        return refuse

    module.__getattr__ = attribute  # type: ignore[method-assign]
    return module


def _memory_stats() -> dict[str, int]:
    peak = _peak_resident_bytes()
    return {"active_bytes.all.peak": peak, "reserved_bytes.all.peak": peak, "num_alloc_retries": 0, "num_ooms": 0}


def _peak_resident_bytes() -> int:
    """Peak resident memory of this process since the last reset, from /proc (Linux); elsewhere since its start."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024  # macOS counts bytes, others KiB


def _reset_peak_resident_bytes() -> None:
    """Start a new peak; some containers forbid it, and the peak then counts from the process's start."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        pass
