"""What the simulator refuses: each case is a mistake that Trainium, or the documented interface, does not allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernels import sim

sim.install()

import nki  # noqa: E402
import nki.isa as nisa  # noqa: E402
import nki.language as nl  # noqa: E402


def tile(rows: int = 128, columns: int = 64, dtype: str = "float32", buffer: Any = None) -> Any:
    made = nl.ndarray((rows, columns), dtype=dtype, buffer=buffer or nl.sbuf)
    if made.buffer is nl.sbuf:
        nisa.memset(dst=made, value=0.0)
    return made


def psum(rows: int = 128, columns: int = 64) -> Any:
    return tile(rows, columns, buffer=nl.psum)


def hbm(rows: int = 128, columns: int = 64) -> Any:
    return nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.private_hbm)


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "256 partitions": (lambda: tile(256, 8), "256 partitions, there are 128"),
    "one dimension on chip": (lambda: nl.ndarray((128,), dtype=nl.float32), "a partition and a free dimension"),
    "513 PSUM columns": (lambda: psum(128, 513), "a bank has 512 columns"),
    "more SBUF than there is": (lambda: [tile(128, 16384) for _ in range(4)], "live tiles, the core has 196608"),
    "more PSUM than there is": (lambda: [psum(128, 512) for _ in range(9)], "live tiles, the core has 16384"),
    "DMA from PSUM": (lambda: nisa.dma_copy(dst=tile(), src=psum()), "do not reach PSUM"),
    "DMA into PSUM": (lambda: nisa.dma_copy(dst=psum(), src=tile()), "do not reach PSUM"),
    "DMA of other sizes": (lambda: nisa.dma_copy(dst=tile(), src=hbm(128, 63)), "different number of elements"),
    "engine on HBM": (lambda: nisa.tensor_copy(dst=tile(), src=hbm()), "engines work on SBUF and PSUM"),
    "broadcasting": (
        lambda: nisa.tensor_tensor(dst=tile(), data1=tile(), data2=tile(128, 1), op=nl.add),
        "no broadcasting",
    ),
    "both operands in PSUM": (
        lambda: nisa.tensor_tensor(dst=tile(), data1=psum(), data2=psum(), op=nl.add),
        "both in PSUM",
    ),
    "operator with other arity": (
        lambda: nisa.tensor_tensor(dst=tile(), data1=tile(), data2=tile(), op=nl.exp),
        "nl.exp takes 1 operands",
    ),
    "no operator": (lambda: nisa.activation(dst=tile(), op=np.exp, data=tile()), "a token such as nl.add"),
    "bfloat16 column": (
        lambda: nisa.tensor_scalar(dst=tile(), data=tile(), op0=nl.add, operand0=tile(128, 1, "bfloat16")),
        "a float32 tile was expected",
    ),
    "matmul with K of 128 against 64": (
        lambda: nisa.nc_matmul(dst=psum(16, 64), stationary=tile(128, 16), moving=tile(64, 64)),
        "contraction of 128 against 64",
    ),
    "matmul with M of 129": (
        lambda: nisa.nc_matmul(dst=psum(), stationary=tile(64, 129), moving=tile(64, 64)),
        "M = 129, at most 128",
    ),
    "matmul with N of 513": (
        lambda: nisa.nc_matmul(dst=psum(), stationary=tile(64, 128), moving=tile(64, 513)),
        "N = 513, at most 512",
    ),
    "matmul into SBUF": (
        lambda: nisa.nc_matmul(dst=tile(16, 64), stationary=tile(128, 16), moving=tile()),
        "the result goes to PSUM",
    ),
    "matmul of float32 with bfloat16": (
        lambda: nisa.nc_matmul(dst=psum(16, 64), stationary=tile(128, 16, "bfloat16"), moving=tile()),
        "float32 multiplies float32 only",
    ),
    "accumulation on nothing": (
        lambda: nisa.nc_matmul(dst=psum(16, 64), stationary=tile(128, 16), moving=tile(), accumulate=True),
        "part of which was never written",
    ),
    "transpose into SBUF": (lambda: nisa.nc_transpose(dst=tile(64, 128), data=tile()), "SBUF into PSUM"),
    "transpose that also casts": (
        lambda: nisa.nc_transpose(dst=psum(64, 128), data=tile(128, 64, "bfloat16")),
        "bfloat16 in sbuf",
    ),
    "slice past the end": (lambda: tile()[:, 32:65], "slice 32:65:1 of 64"),
    "index of the partition dimension": (lambda: tile()[0], "slice the partition dimension"),
    "step over partitions": (lambda: tile()[0:128:2], "no step over them"),
    "pattern past the end of HBM": (lambda: hbm().ap(pattern=[[64, 128], [1, 64]], offset=1), "reaches element 8192"),
    "pattern past the end of a partition": (
        lambda: tile().ap(pattern=[[64, 128], [1, 33]], offset=32),
        "reaches column 64",
    ),
    "pattern over every second partition": (
        lambda: tile().ap(pattern=[[128, 64], [1, 64]]),
        "the first step is the 64",
    ),
    "pattern of a view": (lambda: hbm()[0:64].ap(pattern=[[64, 64], [1, 64]]), ".ap on a view"),
    "64-bit floats": (lambda: tile(dtype="float64"), "dtype float64 is not simulated"),
    "a row out of bounds": (
        lambda: nisa.dma_copy(
            dst=tile(1, 64), src=hbm().ap(pattern=[[64, 1], [1, 64]], vector_offset=_index(128, rows=1))
        ),
        "dimension 0, which has 128 entries",
    ),
    "an instruction that is not simulated": (lambda: nisa.dma_transpose, "nki.isa.dma_transpose is not simulated"),
    "a token that is not simulated": (lambda: nl.gelu, "nki.language.gelu is not simulated"),
    "launch on three cores": (lambda: None, "1 or 2 cores"),
}


def _index(value: int, rows: int) -> Any:
    made = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=made, value=value)
    return made


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str) -> None:
    action, message = CASES[case]

    def kernel() -> None:
        action()

    with pytest.raises((nisa.NkiValidationError, TypeError, AttributeError)) as error:
        nki.simulate(nki.jit(kernel)[3 if "three" in case else 1])()
    assert message in str(error.value)


def test_outside_a_kernel_nothing_is_allocated() -> None:
    with pytest.raises(nisa.NkiValidationError, match=r"run it with nki\.simulate"):
        tile()


def test_a_kernel_is_not_called_without_a_device() -> None:
    with pytest.raises(RuntimeError, match=r"no Neuron device here: run nki\.simulate"):
        nki.jit(tile)()


def test_an_array_with_gaps_is_refused() -> None:
    with pytest.raises(nisa.NkiValidationError, match="contiguous"):
        nki.simulate(nki.jit(lambda a: None))(np.zeros((4, 4), dtype=np.float32).T[1:])


def test_tiles_that_are_let_go_make_room() -> None:
    def kernel() -> None:
        for _ in range(40):
            tile(128, 16384)
            psum(128, 512)

    nki.simulate(nki.jit(kernel))()
