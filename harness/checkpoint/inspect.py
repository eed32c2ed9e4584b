"""What a checkpoint directory holds, from config.json and headers alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.model_config import facts, read_config, shape_of, stored_dtype
from harness.shapes import ModelShape
from harness.weights import EMBEDDING, HEAD, Keys, Tensor, compare_keys, read_tensors


@dataclass(frozen=True)
class Description:
    """A checkpoint as its files describe it."""

    directory: Path
    files: dict[str, int]
    """Size of each file of weights, bytes."""
    tensors: dict[str, Tensor]
    config: dict[str, Any]
    """Empty where config.json cannot be read."""
    shape: ModelShape | None
    """None where config.json describes no Qwen3."""
    config_error: str
    keys: Keys | None
    """Against the model that config.json describes; None without one."""

    @property
    def parameters(self) -> int:
        """A head that a tied model stores a second time is not counted again."""
        twice = self.tied and {HEAD, EMBEDDING} <= self.tensors.keys()
        return sum(tensor.count for tensor in self.tensors.values()) - (self.tensors[HEAD].count if twice else 0)

    @property
    def stored_bytes(self) -> int:
        return sum(tensor.end - tensor.begin for tensor in self.tensors.values())

    @property
    def dtypes(self) -> dict[str, int]:
        """Number of tensors of each type, the most frequent first."""
        return dict(Counter(tensor.dtype for tensor in self.tensors.values()).most_common())

    @property
    def tied(self) -> bool:
        return self.shape is not None and self.shape.tied

    @property
    def head(self) -> str:
        """Where the output head's weight is."""
        stored = HEAD in self.tensors
        if self.tied:
            return "tied to the embedding" + (", stored a second time" if stored else ", not stored")
        return "of its own" if stored else "not stored"

    def to_json(self) -> dict[str, Any]:
        keys = self.keys
        return {
            "directory": str(self.directory),
            "files": self.files,
            "tensors": len(self.tensors),
            "parameters": self.parameters,
            "bytes": self.stored_bytes,
            "dtypes": self.dtypes,
            "tied": self.tied if self.shape else None,
            "head_stored": HEAD in self.tensors,
            "config": facts(self.config),
            "config_dtype": stored_dtype(self.config),
            "config_error": self.config_error or None,
            "keys": None if keys is None else {
                "missing": list(keys.missing), "extra": list(keys.extra), "misshaped": list(keys.misshaped),
            },
        }  # fmt: skip


def describe(directory: Path) -> Description:
    """Read the headers of ``directory`` and hold its keys against its own config.json.

    Raises:
        BadWeights: the weights cannot be read.
    """
    tensors = read_tensors(directory)
    files = {name: (directory / name).stat().st_size for name in sorted({t.file for t in tensors.values()})}
    config: dict[str, Any] = {}
    shape, keys, error = None, None, ""
    try:
        config = read_config(directory)
        shape = shape_of(config)
        keys = compare_keys(tensors, shape)
    except ValueError as problem:
        error = str(problem)
    return Description(directory, files, tensors, config, shape, error, keys)
