"""Whether two ranks, or two lines, say the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from typing import TypeVar

from harness.logs.records import Event, Row

DECIMALS = 1.5e-4
"""torchtitan prints loss and norm with four decimals, or five: rounding differs by one in the last, at most."""
FLOAT32 = 1e-6
"""Large values are exact to float32's resolution only."""

_Unknown = TypeVar("_Unknown", float, None)


def same_value(a: float | None, b: float | None) -> bool:
    """Equal up to rounding; nan equals nan."""
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=FLOAT32, abs_tol=DECIMALS) or (math.isnan(a) and math.isnan(b))


def seconds_between(first: str | bytes | None, second: str | None, unknown: _Unknown) -> float | _Unknown:
    """Seconds from one time stamp to another, ``unknown`` where either is missing or impossible."""
    if first is None or second is None:
        return unknown
    try:
        start = datetime.fromisoformat(first.decode() if isinstance(first, bytes) else first[:26])
        return (datetime.fromisoformat(second[:26]) - start).total_seconds()
    except ValueError:
        return unknown


def disagreements(row: Row, kept: Row) -> Iterator[Event]:
    """An event for each of loss and gradient norm that both rows have, and have otherwise."""
    if row.loss is None or kept.loss is None:  # the norm of a rank without the loss is another pipeline stage's
        return
    for column in ("loss", "grad_norm"):
        mine, theirs = getattr(row, column), getattr(kept, column)
        if mine is not None and theirs is not None and not same_value(mine, theirs):
            data = {"step": row.step, "column": column, "value": mine, "kept": theirs, "kept_rank": kept.rank}
            yield Event("rank_disagreement", row.line, row.time, row.rank, row.segment, data)
