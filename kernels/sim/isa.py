"""nki.isa: the instructions we use, with the shapes, memories and dtypes they accept on Trainium2.

Signatures follow the published interface of NKI 0.6/0.7; ``engine``, ``dge_mode``, ``priority`` and ``name`` are
accepted and change nothing here. What is not listed is not simulated, and says so.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np

from kernels.sim.errors import NkiValidationError, require
from kernels.sim.machine import current_core, instructions
from kernels.sim.memory import Buffer
from kernels.sim.operators import Operator, evaluate
from kernels.sim.tensor import Indirect, NkiTensor

__all__ = [
    "NkiValidationError",
    "activation",
    "core_barrier",
    "dge_mode",
    "dma_copy",
    "engine",
    "get_nc_version",
    "memset",
    "nc_matmul",
    "nc_transpose",
    "nc_version",
    "oob_mode",
    "scalar_tensor_tensor",
    "tensor_copy",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_tensor",
]

F = TypeVar("F", bound=Callable[..., None])
MATMUL_MAX_ROWS = 128
"""Largest contraction (K) and largest stationary free size (M) of the 128 x 128 systolic array."""
MATMUL_MAX_COLUMNS = 512
"""Largest moving free size (N): one PSUM bank of float32."""

engine = enum.Enum("engine", "unknown tensor vector scalar gpsimd dma sync")
dge_mode = enum.Enum("dge_mode", "unknown none swdge hwdge")
oob_mode = enum.Enum("oob_mode", "error skip")
nc_version = enum.IntEnum("nc_version", {"gen2": 2, "gen3": 3, "gen4": 4})


def get_nc_version() -> nc_version:
    """Trainium2."""
    return nc_version.gen3


def _instruction(function: F) -> F:
    """Count executions and put the instruction's name in front of what it refuses."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        current_core()
        try:
            function(*args, **kwargs)
        except NkiValidationError as error:
            message = str(error)
            raise type(error)(
                message if message.startswith("nisa.") else f"nisa.{function.__name__}: {message}"
            ) from None
        instructions[function.__name__] += 1

    return run  # type: ignore[return-value]


def _on_chip(**tiles: NkiTensor) -> None:
    for name, tile in tiles.items():
        require(isinstance(tile, NkiTensor), f"{name} is {type(tile).__name__}, a tile was expected")
        require(tile.buffer.on_chip, f"{name} is in {tile.buffer.value}; engines work on SBUF and PSUM")


def _same_extent(dst: NkiTensor, **tiles: NkiTensor) -> None:
    for name, tile in tiles.items():
        require(tile.extent == dst.extent, f"{name} {tile!r} against dst {dst!r}: no broadcasting")


def _exact_integers(*tiles: NkiTensor) -> bool:
    return all(tile.dtype in ("int32", "uint32") for tile in tiles)


# -- movement -----------------------------------------------------------------------------------------------------


@_instruction
def dma_copy(dst, src, priority=None, oob_mode=oob_mode.error, dge_mode=None, engine=None, name=None) -> None:
    """Copy between HBM and SBUF, converting dtypes through float32; at most one side may be indirect."""
    for tensor in (dst, src):
        require(tensor.buffer is not Buffer.psum, "the DMA engines do not reach PSUM: tensor_copy to SBUF first")
    require(dst.size == src.size, f"{src.shape} to {dst.shape}: different number of elements")
    require(not (isinstance(dst, Indirect) and isinstance(src, Indirect)), "indirect on both sides")
    skip = oob_mode.name == "skip"
    if isinstance(src, Indirect):
        access, kept = src.resolve(skip=skip)
        _move_rows(dst, kept, src.base.memory.read(access))
    elif isinstance(dst, Indirect):
        access, kept = dst.resolve(skip=skip)
        values = src.load().reshape(dst.shape)
        dst.base.memory.write(access, values if kept.all() else values[kept])
    else:
        dst.store(src.load())


def _move_rows(dst: NkiTensor, kept: np.ndarray, values: np.ndarray) -> None:
    """Write gathered rows; the rows of ``dst`` that were skipped keep what they held."""
    if kept.all():
        dst.store(values)
        return
    rows = np.array(dst.load()).reshape(len(kept), -1)
    rows[kept] = values.reshape(-1, rows.shape[1])
    dst.store(rows)


@_instruction
def memset(dst, value, engine=None, name=None) -> None:
    """Fill a tile with a constant."""
    _on_chip(dst=dst)
    dst.store(np.full(dst.shape, value, dtype=np.float32 if isinstance(value, float) else None))


@_instruction
def tensor_copy(dst, src, engine=None, name=None) -> None:
    """Copy a tile within SBUF and PSUM, rounding into the dtype of ``dst``."""
    _on_chip(dst=dst, src=src)
    _same_extent(dst, src=src)
    dst.store(src.load())


# -- arithmetic ---------------------------------------------------------------------------------------------------


@_instruction
def tensor_tensor(dst, data1, data2, op, engine=None, name=None) -> None:
    """``dst = data1 <op> data2`` element by element, in float32; exact where all three are 32-bit integers."""
    _on_chip(dst=dst, data1=data1, data2=data2)
    _same_extent(dst, data1=data1, data2=data2)
    _not_both_in_psum(data1=data1, data2=data2)
    left, right = (tile.load().reshape(tile.extent) for tile in (data1, data2))
    dst.store(evaluate(_operator(op, 2), left, right, exact_integers=_exact_integers(dst, data1, data2)))


@_instruction
def tensor_scalar(
    dst, data, op0, operand0, reverse0=False, op1=None, operand1=None, reverse1=False, engine=None, name=None
) -> None:
    """``dst = (data <op0> operand0) <op1> operand1``; operands are constants or float32 columns, one per partition."""
    _on_chip(dst=dst, data=data)
    _same_extent(dst, data=data)
    result = data.load().reshape(data.extent)
    for op, operand, reverse in ((op0, operand0, reverse0), (op1, operand1, reverse1)):
        if op is not None:
            pair = (result, _column(operand, data))
            result = evaluate(_operator(op, 2), *(pair[::-1] if reverse else pair))
    dst.store(result)


@_instruction
def scalar_tensor_tensor(dst, data, op0, operand0, op1, operand1, reverse0=False, reverse1=False, name=None) -> None:
    """``dst = (data <op0> operand0) <op1> operand1`` with a constant or column first and a tile second."""
    _on_chip(dst=dst, data=data, operand1=operand1)
    _same_extent(dst, data=data, operand1=operand1)
    _not_both_in_psum(data=data, operand1=operand1)
    first = (data.load_float(), _column(operand0, data))
    result = evaluate(_operator(op0, 2), *(first[::-1] if reverse0 else first))
    second = (result, operand1.load_float())
    dst.store(evaluate(_operator(op1, 2), *(second[::-1] if reverse1 else second)))


@_instruction
def activation(dst, op, data, bias=None, scale=1.0, name=None) -> None:
    """``dst = op(data * scale + bias)`` on the Scalar engine; bias is a float32 column, scale a constant or column."""
    _on_chip(dst=dst, data=data)
    _same_extent(dst, data=data)
    value = data.load_float() * np.asarray(_column(scale, data), dtype=np.float32)
    if bias is not None:
        value = value + np.asarray(_column(bias, data), dtype=np.float32)
    dst.store(evaluate(_operator(op, 1), value))


@_instruction
def tensor_reduce(dst, op, data, axis, negate=False, keepdims=False, name=None) -> None:
    """Reduce the last free dimensions of a tile: add, multiply, maximum or minimum, in float32."""
    _on_chip(dst=dst, data=data)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    require(
        axes == tuple(range(min(axes), data.ndim)) and min(axes) > 0, f"axis {axis} of {data!r}: the last free ones"
    )
    require(op.name in ("add", "multiply", "maximum", "minimum"), f"{op!r} does not reduce")
    result = op.compute.reduce(np.asarray(data.load(), dtype=np.float32), axis=axes)
    require(result.size == dst.size, f"result {result.shape} against dst {dst!r}")
    dst.store(-result if negate else result)


# -- tensor engine ------------------------------------------------------------------------------------------------


@_instruction
def nc_matmul(dst, stationary, moving, is_transpose=False, accumulate=None, name=None) -> None:
    """``dst (M, N) = stationary (K, M) transposed @ moving (K, N)``, float32 in PSUM; K, M <= 128, N <= 512."""
    require(not is_transpose, "is_transpose is not simulated: use nc_transpose")
    _on_chip(dst=dst, stationary=stationary, moving=moving)
    in_sbuf = stationary.buffer is Buffer.sbuf and moving.buffer is Buffer.sbuf
    require(in_sbuf and dst.buffer is Buffer.psum, "operands come from SBUF, the result goes to PSUM")
    (k, m), (k_moving, n) = stationary.extent, moving.extent
    require(k == k_moving, f"contraction of {k} against {k_moving} partitions")
    require(m <= MATMUL_MAX_ROWS, f"M = {m}, at most {MATMUL_MAX_ROWS}")
    require(n <= MATMUL_MAX_COLUMNS, f"N = {n}, at most {MATMUL_MAX_COLUMNS}")
    require(dst.extent == (m, n) and dst.dtype == "float32", f"dst {dst!r}: {m} x {n} float32 was expected")
    kinds = {stationary.dtype, moving.dtype}
    require(kinds <= {"float32", "bfloat16", "float16"}, f"operands of {' and '.join(sorted(kinds))}")
    require("float32" not in kinds or len(kinds) == 1, "float32 multiplies float32 only")
    with np.errstate(all="ignore"):
        product = stationary.load_float().T @ moving.load_float()
    dst.accumulate(product, accumulate)


@_instruction
def nc_transpose(dst, data, engine=None, name=None) -> None:
    """Swap partitions and free elements of a tile, bit for bit: SBUF to PSUM, at most 128 x 128."""
    _on_chip(dst=dst, data=data)
    require(data.buffer is Buffer.sbuf and dst.buffer is Buffer.psum, "the Tensor engine transposes SBUF into PSUM")
    partitions, free = data.extent
    require(max(partitions, free) <= MATMUL_MAX_ROWS, f"{data!r}: at most 128 x 128")
    require(dst.extent == (free, partitions) and dst.dtype == data.dtype, f"{data!r} into {dst!r}")
    dst.store(data.load().reshape(partitions, free).T)


@_instruction
def core_barrier(data, cores, engine=None, name=None) -> None:
    """Wait for the other core; shared HBM written before may be read by both after."""
    core = current_core()
    require(tuple(cores) == tuple(range(core.launch.lnc)), f"cores {cores}: all {core.launch.lnc} were expected")
    core.launch.barrier(core)


# -- operands -----------------------------------------------------------------------------------------------------


def _operator(op: object, operands: int) -> Operator:
    require(isinstance(op, Operator), f"op is {op!r}: a token such as nl.add was expected")
    assert isinstance(op, Operator)
    require(op.operands == operands, f"{op!r} takes {op.operands} operands")
    return op


def _column(operand: object, data: NkiTensor) -> np.ndarray | float:
    if not isinstance(operand, NkiTensor):
        return operand  # type: ignore[return-value]
    require(operand.buffer.on_chip and operand.dtype == "float32", f"operand {operand!r}: a float32 tile was expected")
    require(operand.extent == (data.extent[0], 1), f"operand {operand!r} for {data!r}: one column was expected")
    return operand.load_float()


def _not_both_in_psum(**tiles: NkiTensor) -> None:
    require(any(tile.buffer is not Buffer.psum for tile in tiles.values()), f"{' and '.join(tiles)} are both in PSUM")


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"nki.isa.{name} is not simulated here (kernels/sim/README.md lists what is)")
