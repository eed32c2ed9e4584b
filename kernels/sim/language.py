"""nki.language: allocation, loops, program ids, dtype names and operator tokens."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from kernels.sim import dtypes, operators
from kernels.sim.alloc import MAX_PARTITIONS, PSUM_BANK_COLUMNS, allocate
from kernels.sim.errors import require
from kernels.sim.machine import current_core
from kernels.sim.memory import Buffer
from kernels.sim.tensor import NkiTensor

sbuf, psum, shared_hbm, private_hbm = Buffer.sbuf, Buffer.psum, Buffer.shared_hbm, Buffer.private_hbm
hbm = private_hbm
tile_size = SimpleNamespace(
    pmax=MAX_PARTITIONS,
    psum_fmax=PSUM_BANK_COLUMNS,
    gemm_stationary_fmax=128,
    gemm_moving_fmax=PSUM_BANK_COLUMNS,
)

# Dtypes and tokens are module attributes, as in the official package: nl.bfloat16, nl.add, nl.sigmoid.
globals().update({("bool_" if name == "bool" else name): name for name in dtypes.STORAGE})
globals().update(operators.BINARY | operators.UNARY)


def ndarray(
    shape: Sequence[int], dtype: object, buffer: Buffer = sbuf, name: str = "", address: object = None
) -> NkiTensor:
    """Allocate a tensor that reads as NaN until it is written."""
    require(isinstance(buffer, Buffer), f"buffer is {buffer!r}: nl.sbuf, nl.psum, nl.shared_hbm or nl.private_hbm")
    return allocate(shape, dtype, buffer)


def zeros(shape: Sequence[int], dtype: object, buffer: Buffer = sbuf, name: str = "") -> NkiTensor:
    """Allocate a tensor of zeros."""
    tensor = ndarray(shape, dtype, buffer)
    tensor.store(np.zeros(tensor.shape, dtype=np.float32))
    return tensor


def load(src: NkiTensor, dtype: object = None) -> NkiTensor:
    """A new SBUF tile with what ``src`` in HBM holds."""
    from kernels.sim import isa

    tile = ndarray(src.shape, src.dtype if dtype is None else dtype)
    isa.dma_copy(dst=tile, src=src)
    return tile


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Copy an SBUF tile to HBM."""
    from kernels.sim import isa

    require(value.buffer is Buffer.sbuf, f"nl.store of {value!r}: an SBUF tile was expected")
    isa.dma_copy(dst=dst, src=value)


def ds(start: int, size: int) -> slice:
    """``start : start + size``."""
    return slice(start, start + size)


def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """A loop that is unrolled when the kernel is traced; so are affine_range and sequential_range."""
    return builtins.range(start) if stop is None else builtins.range(start, stop, step)


affine_range = sequential_range = static_range


def program_id(axis: int = 0) -> int:
    """Which core of the logical NeuronCore this is."""
    return current_core().index


def num_programs(axes: Any = None) -> int:
    """Cores of the logical NeuronCore: 1 or 2."""
    return current_core().launch.lnc


def program_ndim() -> int:
    """Dimensions of the launch grid: 1, also where the kernel was launched without one."""
    return 1


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"nki.language.{name} is not simulated here (kernels/sim/README.md lists what is)")
