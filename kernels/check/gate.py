"""The numeric gate: run a kernel through its op, forward and backward, and hold every result against a reference.

The reference is plain PyTorch on CPU with autograd's own backward, in higher precision than the kernel: float64 for the
experts; for RoPE float32, rounded once, which is exactly what that kernel claims to be. Inputs are random and fresh. A
kernel that did not run, or left part of its output unwritten (NaN), fails as well.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernels import backend, sim
from kernels.check.shapes import Shape

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.check.suites import Suite

KERNELS = ("nki_rope", "nki_moe")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Check:
    """One result of a kernel against its reference."""

    kernel: str
    what: str
    """forward or grad and of what; calls missing; runs, where it did not."""
    dtype: str
    lnc: int
    backend: str
    shape: str
    max_abs: float
    max_rel: float
    """Largest difference over the largest magnitude of the reference."""
    measure: str
    """Which of the two is held against the tolerance."""
    tolerance: float
    reason: str
    """Why this tolerance."""

    @property
    def passed(self) -> bool:
        """False for NaN as well."""
        return getattr(self, self.measure) <= self.tolerance

    @property
    def metric(self) -> str:
        """Name for a tracker, e.g. ``kernel_check/nki_rope/forward_query/float32/lnc2/max_abs``."""
        what = self.what.replace(" ", "_")
        return f"kernel_check/{self.kernel}/{what}/{self.dtype}/lnc{self.lnc}/{self.measure}"


def run(
    kernel: str,
    *,
    shapes: Iterable[Shape] = (),
    dtypes: Iterable[str] = DTYPES,
    lncs: Iterable[int] = (1, 2),
    where: str = "auto",
    seed: int | None = None,
) -> list[Check]:
    """Check one kernel on every shape, dtype and number of cores per logical core.

    Args:
        kernel: nki_rope or nki_moe.
        where: backend to check; auto is the device where there is one, else the simulator.
        seed: of the inputs; default a new one.

    Raises:
        ValueError: a shape that the kernel refuses.
        RuntimeError: the backend is not there.
    """
    from kernels.check.suites import SUITES

    suite, name = SUITES[kernel], default_backend() if where == "auto" else where
    start = random.randrange(2**31) if seed is None else seed
    return [
        check
        for shape in tuple(shapes) or suite.default_shapes
        for dtype in dtypes
        for lnc in lncs
        for check in _check(kernel, suite, shape, dtype, lnc, name, start)
    ]


def default_backend() -> str:
    """neuron where there is one, else simulator."""
    from kernels.nki_api import why_no_neuron

    return "simulator" if why_no_neuron() else "neuron"


def _check(kernel: str, suite: Suite, shape: Shape, dtype: str, lnc: int, name: str, seed: int) -> Iterator[Check]:
    worst: dict[str, Measured] = {}
    for order in _core_orders(name, lnc):
        for measured in _measure(kernel, suite, shape, dtype, lnc, name, seed, order):
            worst[measured.what] = measured.worse_than(worst.get(measured.what, measured))
    tolerance = suite.tolerance[dtype]
    for what, measured in worst.items():
        yield Check(
            kernel=kernel,
            what=what,
            dtype=dtype,
            lnc=lnc,
            backend=name,
            shape=str(shape),
            max_abs=measured.absolute,
            max_rel=measured.relative,
            measure="max_abs" if measured.reason else tolerance.measure,
            tolerance=0.0 if measured.reason else tolerance.limit,
            reason=measured.reason or tolerance.reason,
        )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A difference, or something else that must be zero, which then has its own reason."""

    what: str
    absolute: float
    relative: float
    reason: str = ""

    def worse_than(self, other: Measured) -> Measured:
        """The larger of both differences."""
        return replace(
            self, absolute=_larger(self.absolute, other.absolute), relative=_larger(self.relative, other.relative)
        )


def _measure(
    kernel: str, suite: Suite, shape: Shape, dtype: str, lnc: int, name: str, seed: int, order: tuple[int, ...]
) -> Iterator[Measured]:
    import torch

    torch.manual_seed(seed)
    before = Counter(sim.executed)
    with backend.isolated(name, lnc=lnc), sim.core_order(*order):
        try:
            for what, result, reference in suite.compare(shape, getattr(torch, dtype)):
                absolute, relative = difference(result, reference)
                yield Measured(what=what, absolute=absolute, relative=relative)
        except ValueError:
            raise  # what was asked for cannot be run at all
        except Exception as error:  # whatever a simulator, a compiler or a device says about a kernel
            message = f"{type(error).__name__}: {error}".splitlines()[0]
            yield Measured(what="runs", absolute=float("nan"), relative=float("nan"), reason=message)
            return
        calls = backend.calls(kernel)
    missing = float(abs(suite.calls - calls.forward) + abs(suite.calls - calls.backward))
    if sim.is_installed() and name == "simulator":
        launched = Counter(sim.executed) - before
        missing += sum(abs(suite.calls * times - launched[each]) for each, times in suite.launches.items())
    yield Measured(what="calls missing", absolute=missing, relative=missing, reason="the kernel itself ran, each time")


def difference(result: Tensor, reference: Tensor) -> tuple[float, float]:
    """Largest absolute difference, and the same over the largest magnitude of the reference; NaN if there is any."""
    mine, theirs = result.detach().cpu(), reference.detach().cpu()
    if mine.dtype == theirs.dtype and bool(((mine == theirs) & theirs.isfinite()).all()):
        return 0.0, 0.0  # the usual case for RoPE, without the two float64 copies below
    exact = theirs.double()
    absolute = float((mine.double() - exact).abs().max())
    scale = float(exact.abs().max())
    return absolute, absolute / scale if scale > 0 else absolute


def _core_orders(name: str, lnc: int) -> tuple[tuple[int, ...], ...]:
    """Both orders of the two cores where our simulator can choose it."""
    return ((0, 1), (1, 0)) if name == "simulator" and lnc == 2 and sim.is_installed() else ((0, 1),)


def _larger(a: float, b: float) -> float:
    """NaN is larger than any number."""
    return a if math.isnan(a) or a >= b else b
