"""What simulated instructions compute: values, rounding, indirect access, and memory nobody wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernels import sim
from kernels.sim import dtypes

torch = pytest.importorskip("torch")
sim.install()

import nki  # noqa: E402
import nki.isa as nisa  # noqa: E402
import nki.language as nl  # noqa: E402

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def run(kernel: Callable[..., Any], *args: Any, lnc: int = 1) -> Any:
    return nki.simulate(nki.jit(kernel)[lnc])(*args)


def test_bfloat16_rounds_like_torch() -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, 3.4e38, 1.00390625, 1.01171875, -1e-45, 65536.5], dtype=np.float32)
    values = np.concatenate([floats(10_000) * 10.0 ** RNG.integers(-30, 30, 10_000).astype(np.float32), special])
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(dtypes.round_bfloat16(values), expected)
    assert np.isnan(dtypes.round_bfloat16(np.array([np.nan], dtype=np.float32)))[0]


def test_floats_become_integers_by_rounding_half_to_even_and_saturating() -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, 300.0, -1e9], dtype=np.float32)
    assert dtypes.cast(values, "int8").tolist() == [0, 2, 2, 0, 127, -128]


def test_products_of_bfloat16_are_exact_in_float32() -> None:
    def product(a, b):
        out = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=tile, data1=nl.load(a), data2=nl.load(b), op=nl.multiply)
        nl.store(out, tile)
        return out

    a, b = (torch.randn(128, 64).bfloat16() for _ in range(2))
    assert torch.equal(run(product, a, b), a.float() * b.float())


def test_an_argument_that_the_kernel_writes_and_returns_comes_back_itself() -> None:
    def double(a, out):
        tile = nl.load(a)
        nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add)
        nl.store(out, tile)
        return out

    for a in (floats(128, 8), torch.randn(128, 8).bfloat16(), torch.randn(128, 8)):
        out = a * 0
        assert run(double, a, out) is out
        assert bool((out == a * 2).all())


def test_unwritten_memory_reads_as_nan() -> None:
    def half(a):
        tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile[:, 0:32], src=a[:, 0:32])
        out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    result = run(half, floats(128, 64))
    assert not np.isnan(result[:, :32]).any()
    assert np.isnan(result[:, 32:]).all()


def test_access_pattern_reads_what_its_loops_say() -> None:
    def gather(a):
        tile = nl.ndarray((4, 3, 2), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=a.ap(pattern=[[1, 4], [10, 3], [0, 2]], offset=7))
        out = nl.ndarray((4, 3, 2), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    a = floats(6, 10)
    expected = [[[a.flat[7 + w + 10 * z]] * 2 for z in range(3)] for w in range(4)]
    np.testing.assert_array_equal(run(gather, a), np.array(expected))


def test_rows_out_of_bounds_are_skipped_in_both_directions() -> None:
    def move(a, index, out):
        rows = nl.load(index)
        tile = nl.ndarray((4, 5), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=tile, value=0.0)
        source = a.ap(pattern=[[8, 4], [1, 5]], offset=2, vector_offset=rows, indirect_dim=0)
        nisa.dma_copy(dst=tile, src=source, oob_mode=nisa.oob_mode.skip)
        target = out.ap(pattern=[[5, 4], [1, 5]], vector_offset=rows, indirect_dim=0)
        nisa.dma_copy(dst=target, src=tile, oob_mode=nisa.oob_mode.skip)
        return out

    a, out = floats(6, 8), np.full((6, 5), 9, dtype=np.float32)
    run(move, a, np.array([[5], [6], [0], [3]], dtype=np.int32), out)
    expected = np.full((6, 5), 9, dtype=np.float32)
    expected[[5, 0, 3]] = a[[5, 0, 3], 2:7]
    np.testing.assert_array_equal(out, expected)


def test_scalar_offset_moves_by_the_whole_entry() -> None:
    def pick(a, index):
        tile = nl.ndarray((3, 4), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=a.ap(pattern=[[8, 3], [1, 4]], offset=1, scalar_offset=nl.load(index)))
        out = nl.ndarray((3, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    a = floats(5, 3, 8)
    np.testing.assert_array_equal(run(pick, a, np.array([[2]], dtype=np.int32)), a[2, :, 1:5])


def test_matmul_overwrites_adds_or_finds_out() -> None:
    def products(x, y, flags):
        total = nl.ndarray((16, 24), dtype=nl.float32, buffer=nl.psum)
        for flag in flags:
            nisa.nc_matmul(dst=total, stationary=nl.load(x), moving=nl.load(y), accumulate=flag)
        tile = nl.ndarray((16, 24), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile, src=total)
        out = nl.ndarray((16, 24), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    x, y = floats(32, 16), floats(32, 24)
    once = x.T @ y
    for flags, times in (((False,), 1), ((False, True, True), 3), ((None, None), 2), ((False, True, False), 1)):
        np.testing.assert_allclose(run(products, x, y, flags), once * times, rtol=1e-5, atol=1e-5)


def test_transpose_keeps_bits() -> None:
    def turn(x):
        turned = nl.ndarray((16, 32), dtype=x.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=nl.load(x))
        tile = nl.ndarray((16, 32), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile, src=turned)
        out = nl.ndarray((16, 32), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    for x in (torch.randn(32, 16).bfloat16(), torch.tensor(floats(32, 16))):
        assert torch.equal(run(turn, x), x.T)


def test_operators_with_columns_constants_and_reversed_operands() -> None:
    def compute(x, column):
        out = nl.ndarray((4, 8, 5), dtype=nl.float32, buffer=nl.shared_hbm)
        tile, scale = nl.load(x), nl.load(column)
        result = nl.ndarray((8, 5), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=result, data=tile, op0=nl.subtract, operand0=1.0, reverse0=True, op1=nl.multiply, operand1=scale
        )
        nl.store(out[0], result)
        nisa.scalar_tensor_tensor(
            dst=result, data=tile, op0=nl.multiply, operand0=scale, op1=nl.subtract, operand1=tile, reverse1=True
        )
        nl.store(out[1], result)
        nisa.activation(dst=result, op=nl.sigmoid, data=tile, bias=scale, scale=2.0)
        nl.store(out[2], result)
        total = nl.ndarray((8, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=tile, axis=1)
        nisa.tensor_scalar(dst=result, data=tile, op0=nl.maximum, operand0=total)
        nl.store(out[3], result)
        return out

    x, column = floats(8, 5), floats(8, 1)
    result = run(compute, x, column)
    np.testing.assert_array_equal(result[0], (1 - x) * column)
    np.testing.assert_array_equal(result[1], x - x * column)
    np.testing.assert_allclose(result[2], 1 / (1 + np.exp(-(2 * x + column))), rtol=1e-6)
    np.testing.assert_allclose(result[3], np.maximum(x, x.sum(1, keepdims=True)), rtol=1e-6)


def test_32_bit_integers_are_exact() -> None:
    def add(a, b):
        tile = nl.ndarray(a.shape, dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=tile, data1=nl.load(a), data2=nl.load(b), op=nl.add)
        out = nl.ndarray(a.shape, dtype=nl.int32, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    a = np.full((2, 3), 2**24 + 1, dtype=np.int32)
    np.testing.assert_array_equal(run(add, a, a), a + a)


def test_launches_and_instructions_are_counted() -> None:
    def copied(a):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(a))
        return out

    before = sim.executed["copied"], sim.instructions["dma_copy"]
    run(copied, floats(4, 4))
    assert (sim.executed["copied"], sim.instructions["dma_copy"]) == (before[0] + 1, before[1] + 2)
