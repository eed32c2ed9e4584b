"""What a log gives: rows (measured steps), events (everything else worth knowing) and rejected lines.

JSON keeps ``inf`` and ``nan`` as the strings "inf", "-inf" and "nan"; in memory they are floats. A value that a line
does not carry, or that is a known placeholder, is ``None`` and never 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

ROW_NUMBERS = ("loss", "grad_norm", "memory_gib", "memory_pct", "tps", "tflops", "mfu")
"""The measured columns of a row, in the order torchtitan prints them."""


def json_value(value: Any) -> Any:
    """``value`` with every float that JSON cannot express turned into a string, at any depth."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return value


def number(value: Any) -> float | int | None:
    """The inverse of ``json_value`` for one number."""
    return float(value) if isinstance(value, str) else value


@dataclass(slots=True)
class Row:
    """One step as printed (or, with ``source`` other than "console", as recorded at full precision).

    ``tps`` is tokens per second *per rank*; ``memory_gib`` and ``memory_pct`` are the peak reserved memory since the
    last row; ``mfu`` is in percent, as printed. ``rank`` is the prefix of the line (``None`` where it has none),
    ``time`` its time stamp (ISO 8601, no zone), ``line`` its number, counted from 1 over everything read.
    """

    kind: str
    segment: int
    step: int
    loss: float | None = None
    grad_norm: float | None = None
    memory_gib: float | None = None
    memory_pct: float | None = None
    tps: float | None = None
    tflops: float | None = None
    mfu: float | None = None
    rank: int | None = None
    time: str | None = None
    line: int = 0
    source: str = "console"
    flags: tuple[str, ...] = ()
    extra: dict[str, Any] | None = None
    """Further columns of the line (``lr``, ``iter``, ``it/s``, ``total_steps`` ...), where there are any."""

    def to_json(self) -> dict[str, Any]:
        """The row as JSON; ``source``, ``flags`` and ``extra`` are left out where they say nothing."""
        out: dict[str, Any] = {
            "kind": self.kind,
            "segment": self.segment,
            "step": self.step,
        }
        for name in ROW_NUMBERS:
            out[name] = json_value(getattr(self, name))
        out.update(rank=self.rank, time=self.time, line=self.line)
        if self.source != "console":
            out["source"] = self.source
        if self.flags:
            out["flags"] = list(self.flags)
        if self.extra:
            out["extra"] = json_value(self.extra)
        return out

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Row:
        """The row that ``to_json`` wrote; unknown keys are ignored, so that older readers read newer files."""
        return cls(
            kind=data["kind"],
            segment=data["segment"],
            step=data["step"],
            rank=data.get("rank"),
            time=data.get("time"),
            line=data.get("line", 0),
            source=data.get("source", "console"),
            flags=tuple(data.get("flags", ())),
            extra=data.get("extra"),
            **{name: number(data.get(name)) for name in ROW_NUMBERS},
        )


@dataclass(slots=True)
class Event:
    """What the log says besides steps; ``kind`` is one of ``harness.logs.KINDS``, which lists the keys of ``data``."""

    kind: str
    line: int
    time: str | None = None
    rank: int | None = None
    segment: int = 0
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "segment": self.segment,
            "rank": self.rank,
            "time": self.time,
            "line": self.line,
            "data": json_value(self.data),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Event:
        return cls(
            kind=data["kind"],
            line=data.get("line", 0),
            time=data.get("time"),
            rank=data.get("rank"),
            segment=data.get("segment", 0),
            data=dict(data.get("data") or {}),
        )


@dataclass(slots=True)
class Rejected:
    """A line that looks like a step line and was not understood: no row was made of it."""

    line: int
    reason: str
    text: str
    """What was read, without colour codes, at most 200 characters."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "rejected",
            "line": self.line,
            "reason": self.reason,
            "text": self.text,
        }


Record = Row | Event | Rejected
