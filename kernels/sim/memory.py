"""Simulated memories: buffers, the elements an instruction selects, and the bookkeeping around them."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.sim import dtypes
from kernels.sim.machine import Access, Core, Launch, Ownership, current_core


class Buffer(enum.Enum):
    """Where a tensor lives."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    @property
    def on_chip(self) -> bool:
        return self in (Buffer.sbuf, Buffer.psum)


@dataclass(frozen=True)
class Strided:
    """Elements at regular steps from an offset: what a slice or a static access pattern selects."""

    offset: int
    shape: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def last(self) -> int:
        """Highest element selected (steps are never negative)."""
        return self.offset + sum((count - 1) * step for count, step in zip(self.shape, self.steps, strict=True))

    def load(self, flat: np.ndarray) -> np.ndarray:
        strides = tuple(step * flat.itemsize for step in self.steps)
        return np.lib.stride_tricks.as_strided(flat[self.offset :], self.shape, strides)

    def store(self, flat: np.ndarray, values: Any) -> None:
        self.load(flat)[...] = values


@dataclass(frozen=True)
class Indexed:
    """Elements at addresses known only at run time, the ones that are skipped left out."""

    index: np.ndarray

    def load(self, flat: np.ndarray) -> np.ndarray:
        return flat[self.index]

    def store(self, flat: np.ndarray, values: Any) -> None:
        flat[self.index] = values


class Memory:
    """The elements behind a tensor and all of its views."""

    def __init__(self, flat: np.ndarray, dtype: str, shape: tuple[int, ...], buffer: Buffer) -> None:
        self.flat = flat
        self.dtype = dtype
        self.shape = shape
        self.buffer = buffer
        self.written = np.zeros(flat.size, dtype=bool) if buffer is Buffer.psum else None
        """PSUM only: what a matmul may accumulate on."""
        self.ownership: Ownership | None = None
        self.dirty = False
        self._held: tuple[Core, int] | None = None

    def share(self, launch: Launch) -> None:
        """Watch who touches what, where two cores may."""
        if launch.lnc == 2:
            self.ownership = Ownership(self.flat.size)
            launch.owned.append(self.ownership)

    def read(self, access: Access) -> np.ndarray:
        """Selected elements in storage type; a view where the steps are regular."""
        if self.ownership is not None:
            self.ownership.read(access, current_core().index)
        return access.load(self.flat)

    def write(self, access: Access, values: np.ndarray) -> None:
        """Round ``values``, which have the shape of the access, into the dtype and write them."""
        if self.ownership is not None:
            self.ownership.write(access, current_core().index)
        access.store(self.flat, dtypes.cast(values, self.dtype))
        self.dirty = True
        if self.written is not None:
            access.store(self.written, True)

    def hold(self, core: Core) -> None:
        nbytes = math.prod(self.shape[1:]) * dtypes.itemsize(self.dtype)
        core.hold(self.buffer.value, nbytes)
        self._held = core, nbytes

    def __del__(self) -> None:
        if self._held is not None:
            core, nbytes = self._held
            core.release(self.buffer.value, nbytes)


def contiguous_steps(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements between neighbours in each dimension of a row-major tensor."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
