"""NKI dtypes by name, how they are stored here, and how a value is rounded into them.

bfloat16 is stored as float32 whose values bfloat16 can represent, so that numpy alone is enough. Everything else is
stored as itself. There is no float8 and no 64-bit type: NKI has none of the latter, and we use none of the former.
"""

from __future__ import annotations

from typing import Any

import numpy as np

STORAGE: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "uint8": np.dtype(np.uint8),
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
    "bool": np.dtype(np.bool_),
}
FLOATS = frozenset({"float32", "bfloat16", "float16"})
UNWRITTEN_INT = 4
"""What an integer reads as before it is written (nki.simulate documents NaN for floats and 4 for integers)."""


def name_of(dtype: object) -> str:
    """NKI name of a dtype given by name, numpy dtype or torch dtype.

    Raises:
        TypeError: a dtype that NKI, or this simulator, does not have.
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    if name not in STORAGE:
        raise TypeError(f"dtype {name} is not simulated: one of {', '.join(STORAGE)} was expected")
    return name


def itemsize(name: str) -> int:
    """Bytes of one element on the device."""
    return 2 if name == "bfloat16" else STORAGE[name].itemsize


def unwritten(count: int, name: str) -> np.ndarray:
    """``count`` elements of memory that nobody has written: NaN, or 4 for integers."""
    return np.full(count, np.nan if name in FLOATS else UNWRITTEN_INT, dtype=STORAGE[name])


def cast(values: np.ndarray, name: str) -> np.ndarray:
    """Round ``values`` into dtype ``name``; returns an array of its storage type, possibly ``values`` itself.

    Floats round to nearest even. A float becomes an integer by rounding half to even and saturating (NKI 0.6 notes).
    """
    if name == "bfloat16":
        return round_bfloat16(np.asarray(values, dtype=np.float32))
    target = STORAGE[name]
    if values.dtype == target:
        return values
    if target.kind in "iu" and values.dtype.kind == "f":
        limits = np.iinfo(target)
        return np.clip(np.rint(values.astype(np.float64)), limits.min, limits.max).astype(target)
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(target)


def round_bfloat16(values: np.ndarray) -> np.ndarray:
    """Nearest bfloat16 of each float32, ties to even, as float32. NaN stays NaN, overflow becomes infinity."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    with np.errstate(over="ignore"):
        rounded = (bits + (np.uint32(0x7FFF) + odd)) & np.uint32(0xFFFF0000)
    result = rounded.view(np.float32).reshape(values.shape)
    nan = np.isnan(values)
    return np.where(nan, np.float32(np.nan), result) if nan.any() else result
