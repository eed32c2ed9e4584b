"""Two checkpoints compared: configuration, keys, shapes, types, and every value."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.checkpoint.inspect import Description, describe
from harness.checkpoint.values import Distance, distance, is_readable
from harness.model_config import FIELDS, FIXED, FIXED_MOE, facts
from harness.progress import printable
from harness.weights import EMBEDDING, HEAD, Tensor, some

MODEL_FACTS = ("model_type", *FIELDS.values(), *FIXED, *FIXED_MOE)
"""Keys of config.json that change what a model computes; the rest (token numbers, versions) is mentioned only."""


def in_json(value: float) -> float | str:
    """JSON has neither NaN nor infinity: they are written as "nan" and "inf", as everywhere in a run's record."""
    return value if math.isfinite(value) else str(value)


@dataclass(frozen=True)
class TensorDiff:
    """One tensor that both checkpoints have with one shape."""

    name: str
    dtypes: tuple[str, str]
    distance: Distance

    def to_json(self) -> dict[str, Any]:
        found = self.distance
        return {
            "name": self.name,
            "dtypes": list(self.dtypes),
            "max_abs_diff": in_json(found.max_abs),
            "relative": in_json(found.relative),
            "nonfinite": list(found.nonfinite),
        }


@dataclass
class Comparison:
    """What two checkpoints have in common and what not; ``first`` and ``second`` as they were named."""

    first: Description
    second: Description
    tolerance: float = 0.0
    """Largest absolute difference that counts as none."""
    only_first: list[str] = field(default_factory=list)
    only_second: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    """Each as "NAME is [2, 3] and [3, 2]"."""
    unreadable: list[str] = field(default_factory=list)
    """Tensors of a type whose values are not understood here."""
    config: list[str] = field(default_factory=list)
    """Differences that change what the model computes."""
    notes: list[str] = field(default_factory=list)
    tensors: list[TensorDiff] = field(default_factory=list)

    @property
    def different(self) -> list[TensorDiff]:
        """The largest relative difference first; what is not finite before all."""
        found = [item for item in self.tensors if not item.distance.within(self.tolerance)]
        return sorted(found, key=lambda item: -math.inf if any(item.distance.nonfinite) else -item.distance.relative)

    @property
    def equal(self) -> bool:
        apart = (self.only_first, self.only_second, self.shapes, self.unreadable, self.config, self.different)
        return bool(self.tensors) and not any(apart)

    @property
    def max_abs_diff(self) -> float:
        """Over all tensors that could be compared; NaN where one has values that are not finite."""
        found = [item.distance.max_abs for item in self.tensors]
        return math.nan if any(math.isnan(value) for value in found) else max(found, default=math.nan)

    def to_json(self) -> dict[str, Any]:
        return {
            "equal": self.equal,
            "tolerance": self.tolerance,
            "only_first": self.only_first,
            "only_second": self.only_second,
            "shapes": self.shapes,
            "unreadable": self.unreadable,
            "config": self.config,
            "notes": self.notes,
            "compared": len(self.tensors),
            "max_abs_diff": in_json(self.max_abs_diff),
            "different": [item.to_json() for item in self.different],
        }


def compare(
    first: Path, second: Path, *, tolerance: float = 0.0, progress: Callable[[int, int], None] = lambda done, all: None
) -> Comparison:
    """Compare two checkpoint directories, their values in pieces of a few megabytes.

    A tied model's head is its embedding: where only one of two stores it, it is compared with the other's embedding.

    Args:
        tolerance: largest absolute difference that counts as none.
        progress: called with the bytes compared so far and in all, of the first checkpoint.

    Raises:
        BadWeights: one of them cannot be read.
    """
    found = Comparison(describe(first), describe(second), tolerance)
    _compare_config(found)
    pairs = _pairs(found)
    done, total = 0, sum(one.end - one.begin for _, one, _ in pairs)
    for name, one, other in pairs:
        progress(done, total)
        done += one.end - one.begin
        if one.shape != other.shape:
            found.shapes.append(f"{name} is {list(one.shape)} and {list(other.shape)}")
        elif not (is_readable(one) and is_readable(other)):
            found.unreadable.append(f"{name} ({one.dtype} and {other.dtype})")
        else:
            apart = distance((first, one), (second, other))
            found.tensors.append(TensorDiff(name, (one.dtype, other.dtype), apart))
    progress(total, total)
    if kinds := sorted({item.dtypes for item in found.tensors if item.dtypes[0] != item.dtypes[1]}):
        named = ", ".join(f"{one} and {other}" for one, other in kinds)
        found.notes.append(f"stored in different types ({named}); values were compared")
    return found


def _pairs(found: Comparison) -> list[tuple[str, Tensor, Tensor]]:
    """What is to be compared, in the first one's order; keys without a partner go into ``found``."""
    one, other = found.first.tensors, found.second.tensors
    pairs = [(name, tensor, other[name]) for name, tensor in one.items() if name in other]
    for name in sorted(one.keys() ^ other.keys()):
        lacking = found.second if name in one else found.first
        if name == HEAD and lacking.tied and EMBEDDING in lacking.tensors:
            pairs.append((name, one.get(HEAD, one.get(EMBEDDING)), other.get(HEAD, other.get(EMBEDDING))))
            found.notes.append(
                f"{name} is stored by one only: compared with the other's embedding, to which it is tied"
            )
        else:
            (found.only_first if name in one else found.only_second).append(name)
    return pairs


def _compare_config(found: Comparison) -> None:
    first, second = found.first, found.second
    for side in (first, second):
        if not side.config:
            found.notes.append(f"configurations not compared: {side.config_error}")
            return
    one, other = facts(first.config), facts(second.config)
    for key in MODEL_FACTS:
        default = (FIXED | FIXED_MOE).get(key, (None,))[0]
        if (left := one.get(key, default)) != (right := other.get(key, default)):
            found.config.append(f"{key} is {printable(str(left))[:80]} and {printable(str(right))[:80]}")
    aliases = {"rope_parameters", "rope_scaling", "num_local_experts", *MODEL_FACTS}
    rest = sorted((first.config.keys() | second.config.keys()) - aliases)
    if unequal := [key for key in rest if first.config.get(key) != second.config.get(key)]:
        found.notes.append(f"also different in config.json: {some(unequal)}")
