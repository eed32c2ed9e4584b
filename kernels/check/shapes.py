"""Shapes that a check runs on, and how they are written on the command line (no torch)."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar

S = TypeVar("S", bound="Shape")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes by name; written ``batch=1,seq=256``."""

    example: ClassVar[str]

    @classmethod
    def parse(cls: type[S], text: str) -> S:
        """Read ``name=number,...``; what is left out keeps its default.

        Raises:
            ValueError: an unknown name, or no positive number.
        """
        names = {field.name for field in fields(cls)}
        values: dict[str, int] = {}
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\w+)\s*=\s*([1-9]\d*)\s*", part)
            if match is None or match[1] not in names:
                raise ValueError(f"shape {text!r}: {part.strip()!r} is not understood; write e.g. {cls.example}")
            values[match[1]] = int(match[2])
        return cls(**values)

    def __str__(self) -> str:
        return ",".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


@dataclass(frozen=True, kw_only=True)
class RopeShape(Shape):
    """Query and key of one attention layer."""

    example: ClassVar[str] = "batch=1,heads=32,kv_heads=8,seq=4096,head_dim=128"

    batch: int = 1
    heads: int = 8
    kv_heads: int = 2
    seq: int = 512
    head_dim: int = 128


@dataclass(frozen=True, kw_only=True)
class ExpertShape(Shape):
    """Tokens and experts of one mixture-of-experts layer; ``tokens * top_k`` rows reach the experts."""

    example: ClassVar[str] = "tokens=512,top_k=4,dim=64,ffn=32,experts=64"

    tokens: int = 256
    top_k: int = 4
    dim: int = 192
    ffn: int = 96
    experts: int = 64

    def __post_init__(self) -> None:
        if self.top_k > self.experts:
            raise ValueError(f"top_k={self.top_k} of experts={self.experts}: at most as many as there are")

    @property
    def rows(self) -> int:
        return self.tokens * self.top_k
