"""Tensors of the simulated memories, and the views that NKI allows on them: slices and access patterns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.sim import dtypes
from kernels.sim.errors import UninitialisedError, require
from kernels.sim.machine import Access
from kernels.sim.memory import Buffer, Indexed, Memory, Strided, contiguous_steps


class NkiTensor:
    """A tensor, or a view of one. Views share memory; only a tensor as it was allocated takes an access pattern."""

    def __init__(self, memory: Memory, where: Strided, *, is_base: bool = False) -> None:
        self.memory = memory
        self.where = where
        self.is_base = is_base

    shape = property(lambda self: self.where.shape)
    dtype = property(lambda self: self.memory.dtype)
    buffer = property(lambda self: self.memory.buffer)
    ndim = property(lambda self: len(self.where.shape))
    size = property(lambda self: math.prod(self.where.shape))

    @property
    def extent(self) -> tuple[int, int]:
        """(partitions, elements per partition) of an on-chip tile: what instructions compare."""
        return self.shape[0], math.prod(self.shape[1:])

    def __repr__(self) -> str:
        return f"NkiTensor({'x'.join(map(str, self.shape))} {self.dtype} in {self.buffer.value})"

    # -- views --------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> NkiTensor:
        keys = list(key) if isinstance(key, tuple) else [key]
        require(len(keys) <= self.ndim, f"{len(keys)} indices for {self!r}")
        keys += [slice(None)] * (self.ndim - len(keys))
        offset, shape, steps = self.where.offset, [], []
        for dim, (item, count, step) in enumerate(zip(keys, self.where.shape, self.where.steps, strict=True)):
            if isinstance(item, slice):
                start, stop, stride = _slice_bounds(item, count, dim)
                shape.append(-(-(stop - start) // stride))
                steps.append(step * stride)
                require(
                    dim > 0 or stride == 1 or not self.buffer.on_chip, "partitions are contiguous: no step over them"
                )
            else:
                start = int(item)
                require(0 <= start < count, f"index {start} of dimension {dim}, which has {count} elements")
                require(dim > 0 or not self.buffer.on_chip, "slice the partition dimension, do not index it")
            offset += start * step
        if not shape:
            shape, steps = [1], [1]
        return NkiTensor(self.memory, Strided(offset, tuple(shape), tuple(steps)))

    def reshape(self, shape: Sequence[int]) -> NkiTensor:
        """The same elements in another shape; HBM tensors as allocated only."""
        require(self.is_base and not self.buffer.on_chip, f"reshape of {self!r}: only HBM tensors as allocated")
        require(math.prod(shape) == self.size, f"reshape of {self!r} to {tuple(shape)}")
        memory = self.memory
        view = NkiTensor(memory, Strided(0, tuple(shape), contiguous_steps(shape)), is_base=True)
        return view

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int = 0,
        scalar_offset: NkiTensor | None = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: object = None,
    ) -> NkiTensor | Indirect:
        """Access pattern: ``[step, count]`` per dimension, in elements, from ``offset`` of the whole tensor.

        ``scalar_offset`` (a 1 x 1 int32 tile) moves the start by that many entries of ``indirect_dim``.
        ``vector_offset`` (a partitions x 1 int32 tile) gives each partition its own row, in place of the first step.
        """
        require(self.is_base, ".ap on a view: the documents disagree about its meaning, call it on the tensor itself")
        require(dtype is None or dtypes.name_of(dtype) == self.dtype, ".ap(dtype=...) is not simulated")
        steps, counts = tuple(int(p[0]) for p in pattern), tuple(int(p[1]) for p in pattern)
        require(min(counts) >= 1 and min(steps) >= 0 and offset >= 0, f".ap pattern {pattern} offset {offset}")
        where = Strided(int(offset), counts, steps)
        require(scalar_offset is None or vector_offset is None, ".ap takes scalar_offset or vector_offset, not both")
        if scalar_offset is not None or vector_offset is not None:
            require(not self.buffer.on_chip, "an indirect access pattern is for tensors in HBM")
            return Indirect(self, where, indirect_dim, scalar=scalar_offset, vector=vector_offset)
        if self.buffer.on_chip:
            _check_on_chip(self, where)
        require(where.last < self.memory.flat.size, f".ap reaches element {where.last} of {self!r}")
        return NkiTensor(self.memory, where)

    # -- access by instructions ---------------------------------------------------------------------------------

    def load(self) -> np.ndarray:
        """The elements, in storage type, as a view."""
        return self.memory.read(self.where)

    def load_float(self) -> np.ndarray:
        """The elements as float32, two-dimensional: partitions, elements per partition."""
        return np.asarray(self.load(), dtype=np.float32).reshape(self.extent)

    def store(self, values: np.ndarray) -> None:
        """Round ``values`` into the dtype and write them; any shape with as many elements."""
        self.memory.write(self.where, values.reshape(self.shape))

    def accumulate(self, values: np.ndarray, onto: bool | None) -> None:
        """PSUM: add ``values`` to what is there (True), overwrite (False), or overwrite what is unwritten (None)."""
        assert self.memory.written is not None
        written = self.where.load(self.memory.written)
        if onto and not written.all():
            raise UninitialisedError(f"nc_matmul accumulates on {self!r}, part of which was never written")
        if onto is None:
            before = np.where(written, self.where.load(self.memory.flat), np.float32(0))
        else:
            before = self.where.load(self.memory.flat) if onto else np.float32(0)
        self.store(values.reshape(self.shape) + before)


@dataclass(frozen=True)
class Indirect:
    """An access pattern whose start is read from a tile when the DMA runs."""

    base: NkiTensor
    where: Strided
    dim: int
    scalar: NkiTensor | None
    vector: NkiTensor | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.where.shape

    dtype = property(lambda self: self.base.dtype)
    buffer = property(lambda self: self.base.buffer)
    size = property(lambda self: math.prod(self.where.shape))

    def resolve(self, *, skip: bool) -> tuple[Access, np.ndarray]:
        """What is selected at this moment, and which entries of the first dimension that is.

        Raises:
            NkiValidationError: an index out of bounds, unless ``skip``.
        """
        limit, stride = self.base.shape[self.dim], math.prod(self.base.shape[self.dim + 1 :])
        rows = self._indices()
        valid = (rows >= 0) & (rows < limit)
        require(
            skip or bool(valid.all()), f"index {rows[~valid][:1]} of dimension {self.dim}, which has {limit} entries"
        )
        inner = Strided(self.where.offset, (1, *self.shape[1:]), (0, *self.where.steps[1:]))
        top = self.base.memory.flat.size
        if self.vector is None:
            keep = np.full(self.shape[0], bool(valid[0]))
            if not valid[0]:
                return Indexed(np.zeros((0, *self.shape[1:]), dtype=np.int64)), keep
            moved = Strided(self.where.offset + int(rows[0]) * stride, self.shape, self.where.steps)
            require(moved.last < top, f".ap reaches element {moved.last} of {self.base!r}")
            return moved, keep
        kept = rows[valid]
        require(not kept.size or inner.last + int(kept.max()) * stride < top, f".ap reaches past {self.base!r}")
        columns = inner.load(np.arange(inner.last + 1))
        return Indexed((kept * stride).reshape((-1,) + (1,) * (len(self.shape) - 1)) + columns), valid

    def _indices(self) -> np.ndarray:
        tile = self.vector if self.vector is not None else self.scalar
        assert tile is not None
        require(tile.buffer is Buffer.sbuf and tile.dtype in ("int32", "uint32"), "an offset is an int32 tile in SBUF")
        expected = (self.shape[0], 1) if self.vector is not None else (1, 1)
        require(tile.extent == expected, f"offset tile {tile!r}: {expected[0]} x {expected[1]} was expected")
        require(self.vector is None or self.dim == 0, "vector_offset is simulated for indirect_dim=0")
        return np.asarray(tile.load(), dtype=np.int64).reshape(-1)


def wrap(flat: np.ndarray, dtype: str, shape: Sequence[int], buffer: Buffer) -> NkiTensor:
    """A tensor over existing elements."""
    where = Strided(0, tuple(shape), contiguous_steps(shape))
    return NkiTensor(Memory(flat, dtype, where.shape, buffer), where, is_base=True)


def _slice_bounds(item: slice, count: int, dim: int) -> tuple[int, int, int]:
    start = 0 if item.start is None else int(item.start)
    stop = count if item.stop is None else int(item.stop)
    stride = 1 if item.step is None else int(item.step)
    require(0 <= start < stop <= count and stride >= 1, f"slice {start}:{stop}:{stride} of {count} in dimension {dim}")
    return start, stop, stride


def _check_on_chip(tensor: NkiTensor, where: Strided) -> None:
    partitions, free = tensor.extent
    require(where.steps[0] == free, f".ap on {tensor!r}: the first step is the {free} elements of a partition")
    first, column = divmod(where.offset, free)
    last = column + sum((count - 1) * step for count, step in zip(where.shape[1:], where.steps[1:], strict=True))
    require(last < free, f".ap reaches column {last} of {tensor!r}")
    require(first + where.shape[0] <= partitions, f".ap reaches partition {first + where.shape[0] - 1} of {tensor!r}")
