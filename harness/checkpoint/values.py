"""Values of tensors, read from their files in pieces: memory does not depend on their size (numpy, no torch)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from harness.weights import ITEM_BYTES, Tensor

PIECE = 1 << 20
"""Elements read at a time: a few megabytes, which stay in the processor's cache."""
INTEGERS = {"F32": "<u4", "BF16": "<u2", "F16": "<u2", "F64": "<u8"}
EXPONENTS = {"F32": 0x7F80_0000, "BF16": 0x7F80, "F16": 0x7C00, "F64": 0x7FF0_0000_0000_0000}
"""Bits of the exponent; all of them set is infinite or NaN."""
PLAIN = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "u1",
}  # fmt: skip
READABLE = (*PLAIN, "BF16", "F8_E4M3", "F8_E5M2")


def is_readable(tensor: Tensor) -> bool:
    """Whether this module knows what the bytes of this type mean."""
    return tensor.dtype in READABLE


def raw_pieces(directory: Path, tensor: Tensor, size: int = PIECE) -> Iterator[bytes]:
    """The bytes of a tensor, ``size`` elements at a time.

    Raises:
        ValueError: the file ends before the tensor does (it has changed since its header was read).
    """
    step = size * ITEM_BYTES[tensor.dtype]
    with (directory / tensor.file).open("rb") as stream:
        stream.seek(tensor.begin)
        left = tensor.end - tensor.begin
        while left > 0:
            data = stream.read(min(step, left))
            if not data:
                raise ValueError(f"{tensor.file} ended {left:,} bytes before its tensor: it is being changed")
            while len(data) < min(step, left):  # never in practice for a regular file
                more = stream.read(min(step, left) - len(data))
                if not more:
                    raise ValueError(f"{tensor.file} ended within a tensor: it is being changed")
                data += more
            left -= len(data)
            yield data


def decode(data: bytes, dtype: str) -> np.ndarray:
    """Numbers of a piece: float32 where that holds them exactly, else float64 (integers beyond 2**53 are rounded)."""
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype in ("F8_E4M3", "F8_E5M2"):
        return _eight_bits(dtype)[np.frombuffer(data, "u1")]
    wide = np.float32 if dtype in ("F32", "F16", "I8", "U8", "I16", "U16", "BOOL") else np.float64
    return np.frombuffer(data, PLAIN[dtype]).astype(wide, copy=False)


def count_nonfinite(data: bytes, dtype: str) -> int:
    """NaNs and infinities in a piece, found by their bits."""
    if dtype in EXPONENTS:
        mask = np.array(EXPONENTS[dtype], INTEGERS[dtype])
        return int(np.count_nonzero((np.frombuffer(data, INTEGERS[dtype]) & mask) == mask))
    if dtype.startswith("F8"):
        return int(np.count_nonzero(~np.isfinite(decode(data, dtype))))
    return 0


@cache
def _eight_bits(dtype: str) -> np.ndarray:
    """All 256 values of an 8-bit float: E5M2 as in IEEE, E4M3 without infinities (OCP 8-bit Floating Point, 1.0)."""
    codes = np.arange(256, dtype=np.uint8)
    if dtype == "F8_E5M2":
        return (codes.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, fraction = (codes >> 3 & 15).astype(int), codes & 7
    value = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    value[(exponent == 15) & (fraction == 7)] = math.nan
    return (sign * value).astype(np.float32)


def nonfinite(directory: Path, tensor: Tensor) -> int:
    """NaNs and infinities in a tensor."""
    return sum(count_nonfinite(data, tensor.dtype) for data in raw_pieces(directory, tensor))


@dataclass(frozen=True)
class Distance:
    """How far two tensors of one shape are apart."""

    max_abs: float = 0.0
    """Largest difference of two values; NaN where there are values that are not finite."""
    scale: float = 0.0
    """Largest absolute value of the first."""
    nonfinite: tuple[int, int] = (0, 0)
    """NaNs and infinities in the first and in the second: they are equal to nothing."""

    @property
    def relative(self) -> float:
        """``max_abs`` over ``scale``; 0 for equal tensors, infinite where the first is all zero, NaN as ``max_abs``."""
        if self.max_abs == 0 or math.isnan(self.max_abs):
            return self.max_abs
        return self.max_abs / self.scale if self.scale else math.inf

    def within(self, tolerance: float) -> bool:
        return not any(self.nonfinite) and self.max_abs <= tolerance


def distance(first: tuple[Path, Tensor], second: tuple[Path, Tensor]) -> Distance:
    """Compare two tensors of one shape: bytes where both have one type, numbers where the bytes differ."""
    (place, one), (other_place, other) = first, second
    max_abs, scale, bad = 0.0, 0.0, (0, 0)
    for data, other_data in zip(raw_pieces(place, one), raw_pieces(other_place, other), strict=True):
        found = (count_nonfinite(data, one.dtype), count_nonfinite(other_data, other.dtype))
        bad = (bad[0] + found[0], bad[1] + found[1])
        if any(found):
            continue
        if one.dtype == other.dtype and data == other_data:
            if one.dtype in EXPONENTS:
                scale = max(scale, _largest(data, one.dtype))
            continue
        left, right = decode(data, one.dtype), decode(other_data, other.dtype)
        with np.errstate(over="ignore"):
            max_abs = max(max_abs, float(np.abs(left - right).max()))
        scale = max(scale, float(np.abs(left).max()))
    return Distance(math.nan if any(bad) else max_abs, scale, bad)


def _largest(data: bytes, dtype: str) -> float:
    """Largest absolute value of a piece of finite floats: that of the largest bit pattern without its sign."""
    bits = np.frombuffer(data, INTEGERS[dtype])
    sign = np.array(1 << (8 * ITEM_BYTES[dtype] - 1), INTEGERS[dtype])
    return float(decode((bits & ~sign).max().tobytes(), dtype)[0])
