"""``nl.ndarray``: tiles and HBM tensors, checked against what one NeuronCore has."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernels.sim import dtypes
from kernels.sim.errors import require
from kernels.sim.machine import Core, current_core
from kernels.sim.memory import Buffer
from kernels.sim.tensor import NkiTensor, wrap

MAX_PARTITIONS = 128
PSUM_BANK_COLUMNS = 512
PSUM_BANK_BYTES = 2048


def allocate(shape: Sequence[int], dtype: object, buffer: Buffer) -> NkiTensor:
    """``nl.ndarray``: memory that reads as NaN until it is written.

    Raises:
        NkiValidationError: a tile that no NeuronCore can hold.
    """
    core, name, counts = current_core(), dtypes.name_of(dtype), tuple(int(count) for count in shape)
    require(len(counts) >= 1 and min(counts) >= 1, f"shape {counts}: positive dimensions were expected")
    if buffer.on_chip:
        require(len(counts) >= 2, f"tile {counts}: a partition and a free dimension were expected")
        require(counts[0] <= MAX_PARTITIONS, f"tile {counts}: {counts[0]} partitions, there are {MAX_PARTITIONS}")
    if buffer is Buffer.psum:
        columns = math.prod(counts[1:])
        fits = columns <= PSUM_BANK_COLUMNS and columns * dtypes.itemsize(name) <= PSUM_BANK_BYTES
        require(fits, f"PSUM tile {counts} {name}: a bank has {PSUM_BANK_COLUMNS} columns of 4 bytes")
    if buffer is Buffer.shared_hbm:
        return _shared(core, counts, name)
    tensor = wrap(dtypes.unwritten(math.prod(counts), name), name, counts, buffer)
    if buffer.on_chip:
        tensor.memory.hold(core)
    return tensor


def _shared(core: Core, shape: tuple[int, ...], dtype: str) -> NkiTensor:
    """The same program point allocates the same tensor on both cores."""
    launch, place = core.launch, core.shared_allocations
    core.shared_allocations += 1
    if place == len(launch.shared):
        tensor = wrap(dtypes.unwritten(math.prod(shape), dtype), dtype, shape, Buffer.shared_hbm)
        tensor.memory.share(launch)
        launch.shared.append(tensor)
    tensor = launch.shared[place]
    require(tensor.shape == shape and tensor.dtype == dtype, "the cores allocate shared HBM in different orders")
    return tensor
