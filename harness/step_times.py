"""Seconds per step from log rows: by tokens per second and by timestamps, both kept, disagreement flagged.

torchtitan prints ``tps`` = tokens since the last printed line / (time since then x non-data-parallel size), so tokens per
step over ``tps`` is the time of a step as the trainer saw it. Two caveats, both seen in torchtitan 0.3.0:

* the clock of the first line starts when the metrics object is built, so that line also pays for building the model and
  loading weights; the time of "Training starts at step N" does not have this fault and is preferred there;
* validation resets that clock, so ``tps`` never contains validation, but timestamps do. A checkpoint and a garbage
  collection come after the line is printed and count to the next line by both ways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from harness.logs import Event, Row

FloatArray = NDArray[np.float64]

PAUSES = {
    "checkpoint_saved": "checkpoint",
    "checkpoint_save": "checkpoint",
    "validation": "validation",
    "gc": "gc",
    "dataset_relooped": "data",
    "profiler": "profiler",
}
"""Event kinds that explain a slow step, and what the step's cause is then called."""

FINE_ENOUGH = 0.005
"""A source whose rounding exceeds this share of a step gives way to the other if that one is finer."""
DISAGREE = 0.05
"""Relative difference of the two sources that is reported, beyond what rounding explains."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Step times of one segment; arrays of one length, one entry per logged step."""

    segment: int
    last_step: NDArray[np.int64]
    num_steps: NDArray[np.int64]
    """How many steps an entry is the mean of."""
    seconds: FloatArray
    """Seconds per step by the chosen source (relative units if ``source`` is ``relative``)."""
    from_tps: FloatArray
    """Seconds per step by tokens per second; NaN where the row has none."""
    from_clock: FloatArray
    """Seconds per step by timestamps; NaN where there is none."""
    causes: tuple[str, ...]
    source: str
    """tps, clock, or relative: ``tps`` without knowing the tokens of a step, so that only ratios mean anything."""
    tokens_per_step: float | None
    """Tokens of one step per rank, as ``tps`` counts them."""
    tokens_source: str
    """given, estimated (from tps x timestamps), or unknown."""
    disagreeing: tuple[int, ...]
    """Steps at which the two sources differ by more than ``DISAGREE``."""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.seconds)


def step_times(
    rows: Sequence[Row],
    events: Iterable[Event] = (),
    *,
    tokens_per_step: float | None = None,
    segment: int | None = None,
) -> StepTimes:
    """Step times of one segment (default: of the longest one, the last of equals).

    ``tokens_per_step``: tokens of one optimizer step per rank, in the sense of ``tps``; without it the number is estimated
    from rows that carry both ``tps`` and a time. Rows of validation are passed over.
    """
    chosen = longest_segment(rows) if segment is None else segment
    train = _one_per_step(row for row in rows if row.kind == "train" and row.segment == chosen)
    own_events = [event for event in events if event.segment == chosen]
    start = _training_start(own_events, train)
    last = np.array([row.step for row in train], dtype=np.int64)
    interval = _typical_interval(last)
    gaps = np.diff(last, prepend=(start[0] - 1) if start else (last[0] - min(interval, last[0]) if len(last) else 0))
    times = np.array([_seconds(row.time) for row in train])
    before = np.concatenate([[start[1] if start else np.nan], times[:-1]])[: len(times)]
    elapsed = times - before
    from_clock = np.where(elapsed > 0, elapsed, np.nan) / np.maximum(gaps, 1)
    tps = np.array([row.tps or np.nan for row in train], dtype=np.float64)
    tokens, tokens_source = _tokens(tokens_per_step, tps, from_clock)
    from_tps = tokens / tps if tokens else np.full(len(tps), np.nan)
    source, seconds = _choose(from_tps, from_clock, gaps, tps, _clock_resolution(train))
    if source == "none" and np.isfinite(tps).any():
        source, seconds = "relative", 1.0 / tps
    notes = []
    if start and len(train) and source != "relative" and np.isfinite(from_clock[0]):
        seconds[0] = from_clock[0]
        if np.isfinite(from_tps[0]) and from_tps[0] > (1 + DISAGREE) * from_clock[0]:
            notes.append(
                f"first line: {from_tps[0] * gaps[0]:.2f} s by tps (contains building the model), "
                f"{from_clock[0] * gaps[0]:.2f} s from the start of training"
            )
    causes = _causes(train, own_events)
    disagreeing = _disagreeing(from_tps, from_clock, gaps, tps, _clock_resolution(train), causes, last)
    if len(disagreeing) > max(1, len(last) // 10):
        notes.append(
            f"tps and timestamps disagree by more than {DISAGREE:.0%} at {len(disagreeing)} of {len(last)} steps"
        )
    keep = np.isfinite(seconds) & (seconds > 0)
    return StepTimes(
        segment=chosen,
        last_step=last[keep],
        num_steps=np.maximum(gaps, 1)[keep],
        seconds=seconds[keep],
        from_tps=from_tps[keep],
        from_clock=from_clock[keep],
        causes=tuple(cause for cause, kept in zip(causes, keep, strict=True) if kept),
        source=source,
        tokens_per_step=tokens,
        tokens_source=tokens_source,
        disagreeing=disagreeing,
        notes=tuple(notes),
    )


def longest_segment(rows: Iterable[Row]) -> int:
    """The segment with the most training rows, the last of equals; 0 without any."""
    count = Counter(row.segment for row in rows if row.kind == "train")
    return max(count, key=lambda segment: (count[segment], segment), default=0)


def _one_per_step(rows: Iterable[Row]) -> list[Row]:
    first: dict[int, Row] = {}
    for row in rows:
        first.setdefault(row.step, row)
    return [first[step] for step in sorted(first)]


def _training_start(events: Sequence[Event], train: Sequence[Row]) -> tuple[int, float] | None:
    """(first step, time) of "Training starts at step N" if it is just before the first row."""
    for event in reversed(events):
        if event.kind == "train_start" and train and event.line <= train[0].line:
            step = event.data.get("step")
            if isinstance(step, int) and 0 < step <= train[0].step:
                return step, _seconds(event.time)
    return None


def _typical_interval(last: NDArray[np.int64]) -> int:
    gaps = np.diff(last)
    return int(np.median(gaps)) if len(gaps) else 1


def _seconds(time: str | None) -> float:
    if not time:
        return float("nan")
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return float("nan")


def _clock_resolution(train: Sequence[Row]) -> float:
    """Resolution of the timestamps in seconds: a millisecond, or a second where no row carries a fraction."""
    return 0.001 if any(row.time and "." in row.time for row in train) else 1.0


def _tokens(given: float | None, tps: FloatArray, from_clock: FloatArray) -> tuple[float | None, str]:
    if given:
        return float(given), "given"
    both = (tps * from_clock)[1:]
    both = both[np.isfinite(both)]
    return (float(np.median(both)), "estimated") if len(both) >= 3 else (None, "unknown")


def _rounding(
    tps: FloatArray, from_clock: FloatArray, gaps: NDArray[np.int64], clock_resolution: float
) -> tuple[float, float]:
    """Typical relative rounding error of each source (``tps`` is printed as an integer)."""
    by_tps = float(np.nanmedian(0.5 / tps)) if np.isfinite(tps).any() else np.inf
    by_clock = float(np.nanmedian(clock_resolution / (from_clock * gaps))) if np.isfinite(from_clock).any() else np.inf
    return by_tps, by_clock


def _choose(
    from_tps: FloatArray, from_clock: FloatArray, gaps: NDArray[np.int64], tps: FloatArray, clock_resolution: float
) -> tuple[str, FloatArray]:
    have_tps, have_clock = np.isfinite(from_tps).any(), np.isfinite(from_clock).any()
    if not have_tps and not have_clock:
        return "none", from_tps
    by_tps, by_clock = _rounding(tps, from_clock, gaps, clock_resolution)
    prefer_tps = bool((gaps[1:] == 1).all()) if have_tps and have_clock else have_tps
    if have_tps and have_clock:
        if prefer_tps and by_tps > FINE_ENOUGH and by_clock < by_tps / 2:
            prefer_tps = False
        elif not prefer_tps and by_clock > FINE_ENOUGH and by_tps < by_clock / 2:
            prefer_tps = True
    first, second = (from_tps, from_clock) if prefer_tps else (from_clock, from_tps)
    return ("tps" if prefer_tps else "clock"), np.where(np.isfinite(first), first, second)


def _causes(train: Sequence[Row], events: Sequence[Event]) -> list[str]:
    """What the log reports between a row and the one before it (after the first row)."""
    causes = [""] * len(train)
    lines = np.array([row.line for row in train])
    for event in events:
        cause = PAUSES.get(event.kind)
        index = int(np.searchsorted(lines, event.line))
        if cause and 0 < index < len(train):
            causes[index] = causes[index] or cause
    return causes


def _disagreeing(
    from_tps: FloatArray,
    from_clock: FloatArray,
    gaps: NDArray[np.int64],
    tps: FloatArray,
    clock_resolution: float,
    causes: Sequence[str],
    last: NDArray[np.int64],
) -> tuple[int, ...]:
    with np.errstate(invalid="ignore"):
        slack = DISAGREE + 0.5 / tps + clock_resolution / (from_clock * gaps)
        apart = np.abs(np.log(from_tps / from_clock)) > slack
    return tuple(int(step) for i, step in enumerate(last) if i > 0 and apart[i] and not causes[i])
