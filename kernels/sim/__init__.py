"""A CPU simulator of the part of NKI that our kernels use, for machines without the Neuron SDK.

It runs kernel source as it is: ``install`` makes it importable as ``nki``, ``nki.isa`` and ``nki.language``, and only
where the official package is not. What it checks, and what it cannot, is in README.md beside this file. A kernel that
passes here has not been compiled for Trainium.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from kernels.sim.machine import core_order, executed, instructions

__all__ = ["core_order", "executed", "install", "instructions", "is_installed"]

NAMES = ("nki", "nki.isa", "nki.language")


def is_installed() -> bool:
    """Whether ``import nki`` gives this simulator."""
    return getattr(sys.modules.get("nki"), "__simulator__", False)


def install() -> None:
    """Make ``import nki`` give this simulator.

    Raises:
        RuntimeError: the official package can be imported here; it simulates with ``nki.simulate`` of its own.
    """
    if is_installed():
        return
    if _official_package_works():
        raise RuntimeError("the official nki package is installed here: use its own nki.simulate")
    from kernels.sim import isa, language, runtime

    package = ModuleType("nki", "CPU simulator of the NKI subset used by this project (kernels/sim).")
    package.__path__ = []  # a package without files: only the submodules put in place below exist
    package.__simulator__ = True  # type: ignore[attr-defined]
    package.jit, package.simulate = runtime.jit, runtime.simulate  # type: ignore[attr-defined]
    package.isa, package.language = isa, language  # type: ignore[attr-defined]
    sys.modules.update(dict(zip(NAMES, (package, isa, language), strict=True)))


def _official_package_works() -> bool:
    """Import it for real: an index placeholder of the same name is found, but raises ImportError."""
    try:
        importlib.import_module("nki")
    except ImportError:
        for name in [name for name in sys.modules if name == "nki" or name.startswith("nki.")]:
            del sys.modules[name]
        return False
    return True
