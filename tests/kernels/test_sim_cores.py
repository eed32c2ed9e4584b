"""Two cores of one logical NeuronCore: what they share, in which order they run, and races between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernels import sim
from kernels.sim.errors import NkiValidationError, RaceError

sim.install()

import nki  # noqa: E402
import nki.isa as nisa  # noqa: E402
import nki.language as nl  # noqa: E402

ORDERS = [(0, 1), (1, 0)]


def run(kernel: Callable[..., Any], *args: Any, lnc: int = 2) -> Any:
    return nki.simulate(nki.jit(kernel)[lnc])(*args)


def constant(value: float) -> Any:
    made = nl.ndarray((1, 4), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=made, value=value)
    return made


def each_its_row(out):
    core = nl.program_id(axis=0)
    nl.store(out[core : core + 1], constant(10.0 * nl.num_programs(axes=0) + core))
    return out


@pytest.mark.parametrize("order", ORDERS)
def test_each_core_writes_its_part(order: tuple[int, int]) -> None:
    with sim.core_order(*order):
        out = run(each_its_row, np.zeros((2, 4), dtype=np.float32))
    np.testing.assert_array_equal(out, [[20.0] * 4, [21.0] * 4])


def test_one_core_sees_itself_alone() -> None:
    out = run(each_its_row, np.zeros((2, 4), dtype=np.float32), lnc=1)
    np.testing.assert_array_equal(out, [[10.0] * 4, [0.0] * 4])


def test_both_cores_allocate_the_same_shared_tensor_and_their_own_private_one() -> None:
    def kernel():
        core = nl.program_id(axis=0)
        shared = nl.ndarray((2, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        private = nl.ndarray((1, 4), dtype=nl.float32, buffer=nl.private_hbm)
        nl.store(private, constant(float(core)))
        nl.store(shared[core : core + 1], nl.load(private))
        return shared

    np.testing.assert_array_equal(run(kernel), [[0.0] * 4, [1.0] * 4])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("touch", ["both write", "read after write", "write after read"])
def test_a_race_is_found_whatever_the_order(order: tuple[int, int], touch: str) -> None:
    def kernel(out):
        writes = {"both write": (0, 1), "read after write": (0,), "write after read": (1,)}[touch]
        if nl.program_id(axis=0) in writes:
            nl.store(out, constant(1.0))
        else:
            nl.load(out)

    with sim.core_order(*order), pytest.raises(RaceError, match="no barrier between"):
        run(kernel, np.zeros((1, 4), dtype=np.float32))


def test_a_race_through_row_numbers_is_found() -> None:
    def kernel(out, index):
        target = out.ap(pattern=[[4, 1], [1, 4]], vector_offset=nl.load(index), indirect_dim=0)
        nisa.dma_copy(dst=target, src=constant(1.0))

    with pytest.raises(RaceError):
        run(kernel, np.zeros((3, 4), dtype=np.float32), np.array([[2]], dtype=np.int32))


@pytest.mark.parametrize("order", ORDERS)
def test_a_barrier_makes_the_other_cores_writing_readable(order: tuple[int, int]) -> None:
    def exchange(scratch, out):
        core = nl.program_id(axis=0)
        nl.store(scratch[core : core + 1], constant(float(core)))
        nisa.core_barrier(scratch, cores=(0, 1))
        nl.store(out[core : core + 1], nl.load(scratch[1 - core : 2 - core]))
        return out

    with sim.core_order(*order):
        out = run(exchange, np.zeros((2, 4), dtype=np.float32), np.zeros((2, 4), dtype=np.float32))
    np.testing.assert_array_equal(out, [[1.0] * 4, [0.0] * 4])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("waiting", [0, 1])
def test_a_barrier_that_one_core_never_reaches_is_an_error(order: tuple[int, int], waiting: int) -> None:
    def kernel(scratch):
        if nl.program_id(axis=0) == waiting:
            nisa.core_barrier(scratch, cores=(0, 1))

    with sim.core_order(*order), pytest.raises(NkiValidationError, match="one core waits, the other has ended"):
        run(kernel, np.zeros((2, 4), dtype=np.float32))


@pytest.mark.parametrize("order", ORDERS)
def test_an_error_on_one_core_ends_the_other(order: tuple[int, int]) -> None:
    def kernel(scratch):
        if nl.program_id(axis=0) == 1:
            raise ZeroDivisionError("on core 1")
        nisa.core_barrier(scratch, cores=(0, 1))

    with sim.core_order(*order), pytest.raises(ZeroDivisionError, match="on core 1"):
        run(kernel, np.zeros((2, 4), dtype=np.float32))


def test_an_order_names_both_cores() -> None:
    with pytest.raises(NkiValidationError, match=r"\(0, 1\) or \(1, 0\)"), sim.core_order(0, 0):
        pass
