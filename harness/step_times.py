"""Seconds per step from log rows: by tokens per second and by timestamps, both kept, disagreement flagged.

torchtitan prints ``tps`` = tokens since the last printed line / (time since then x non-data-parallel size), so tokens
per step over ``tps`` is the time of a step as the trainer saw it. Caveats, all seen in torchtitan 0.3.0:

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
IntArray = NDArray[np.int64]

PAUSES = {
    "checkpoint_saved": "checkpoint",
    "checkpoint_staged": "checkpoint",
    "gc": "gc",
    "dataset_reloop": "data",
    "profile": "profiler",
    "alloc_retries": "allocation retries",
}
"""Event kinds that explain a slow step, and what the step's cause is then called."""
EXPLAINS = 0.5
"""An event that says how long it took explains a step only if it took this share of what the step took too long."""
FINE_ENOUGH = 0.005
"""A source whose rounding exceeds this share of a step gives way to the other if that one is finer."""
DISAGREE = 0.05
"""Relative difference of the two sources that is reported, beyond what rounding explains."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Step times of one segment; arrays of one length, one entry per logged step."""

    segment: int
    last_step: IntArray
    num_steps: IntArray
    """How many steps an entry is the mean of."""
    seconds: FloatArray
    """Seconds per step by the chosen source (relative units if ``source`` is ``relative``)."""
    from_tps: FloatArray
    """Seconds per step by tokens per second; NaN where the row has none."""
    from_clock: FloatArray
    """Seconds per step by timestamps; NaN where there is none."""
    causes: tuple[str, ...]
    source: str
    """tps, clock, none, or relative: ``tps`` without the tokens of a step, so that only ratios mean anything."""
    tokens_per_step: float | None
    """Tokens of one step per rank, as ``tps`` counts them."""
    tokens_source: str
    """given, estimated (from tps x timestamps), or unknown."""
    disagreeing: tuple[int, ...]
    """Steps at which the two sources differ by more than ``DISAGREE``."""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def total(self) -> float:
        """Seconds of all steps together."""
        return float((self.seconds * self.num_steps).sum())


def step_times(
    rows: Sequence[Row],
    events: Iterable[Event] = (),
    *,
    tokens_per_step: float | None = None,
    segment: int | None = None,
) -> StepTimes:
    """Step times of one segment (default: of the longest one, the last of equals).

    ``tokens_per_step``: tokens of one optimizer step per rank, in the sense of ``tps``; without it the number is
    estimated from rows that carry both ``tps`` and a time. Rows of validation count as pauses only.
    """
    chosen = longest_segment(rows) if segment is None else segment
    train = _one_per_step(row for row in rows if row.kind == "train" and row.segment == chosen)
    validated = [row.line for row in rows if row.kind == "validate" and row.segment == chosen]
    own = [event for event in events if event.segment == chosen]
    starts = [event for event in own if event.kind == "training_start" and isinstance(event.data.get("step"), int)]
    last = np.array([row.step for row in train], dtype=np.int64)
    first = _first_step(train, starts)
    gaps = np.maximum(1, np.diff(last, prepend=first - 1)) if len(last) else last
    tps = np.array([row.tps or np.nan for row in train], dtype=np.float64)
    from_clock = _from_clock(train, starts, gaps)
    rounding = _Rounding(tps, from_clock * gaps, _clock_resolution(train))
    tokens, tokens_source = _tokens(tokens_per_step, tps, from_clock)
    from_tps = tokens / tps if tokens else np.full(len(tps), np.nan)
    source, seconds = _choose(from_tps, from_clock, gaps, rounding)
    if source == "clock":  # lines are missing: `tps` is of the last interval only, the clock of all that is not shown
        cut = (gaps > 1.5 * np.median(gaps)) & np.isfinite(from_tps) & (np.arange(len(gaps)) > 0)
        seconds[cut] = from_tps[cut]
    if source == "none" and np.isfinite(tps).any():
        source, seconds = "relative", 1.0 / tps
    notes = []
    if source == "tps" and starts and np.isfinite(from_clock[0]):
        seconds[0] = from_clock[0]
        if from_tps[0] > (1 + DISAGREE) * from_clock[0]:
            notes.append(
                f"first line: {from_tps[0] * gaps[0]:.2f} s by tps, which contains building the model; "
                f"{from_clock[0] * gaps[0]:.2f} s from the start of training"
            )
    causes = _causes(train, own, validated if source == "clock" else [], seconds, gaps)
    disagreeing = _disagreeing(from_tps, from_clock, rounding, causes, validated, train)
    if len(disagreeing) > max(1, len(last) // 10):
        notes.append(
            f"tps and timestamps differ by more than {DISAGREE:.0%} at {len(disagreeing)} of {len(last)} steps"
        )
    keep = np.isfinite(seconds) & (seconds > 0)
    return StepTimes(
        segment=chosen,
        last_step=last[keep],
        num_steps=gaps[keep],
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


def _first_step(train: Sequence[Row], starts: Sequence[Event]) -> int:
    """The first step of the segment: as announced, else one usual interval before the first row."""
    if not train:
        return 1
    announced = [event.data["step"] for event in starts if event.line <= train[0].line]
    if announced and 0 < announced[-1] <= train[0].step:
        return announced[-1]
    usual = int(np.median(np.diff([row.step for row in train]))) if len(train) > 1 else 1
    return max(1, train[0].step - usual + 1) if train[0].step > 1 else train[0].step


def _from_clock(train: Sequence[Row], starts: Sequence[Event], gaps: IntArray) -> FloatArray:
    """Seconds per step since the line before, or since training started if that is announced in between."""
    times = np.array([_seconds(row.time) for row in train])
    before = np.concatenate([[np.nan], times[:-1]])[: len(times)]
    lines = [row.line for row in train]
    for event in starts:
        index = int(np.searchsorted(lines, event.line))
        if index < len(train):
            before[index] = _seconds(event.time)
    elapsed = times - before
    return np.where(elapsed > 0, elapsed, np.nan) / gaps


def _seconds(time: str | None) -> float:
    """Unix seconds of an ISO 8601 time (one without a zone is local); NaN if there is none."""
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


class _Rounding:
    """Relative rounding errors: ``tps`` is printed as an integer, times to ``resolution`` seconds."""

    def __init__(self, tps: FloatArray, elapsed: FloatArray, resolution: float) -> None:
        self.tps, self.clock = 0.5 / tps, resolution / elapsed

    @property
    def typical(self) -> tuple[float, float]:
        def middle(values: FloatArray) -> float:
            return float(np.nanmedian(values)) if np.isfinite(values).any() else np.inf

        return middle(self.tps), middle(self.clock)


def _choose(
    from_tps: FloatArray, from_clock: FloatArray, gaps: IntArray, rounding: _Rounding
) -> tuple[str, FloatArray]:
    """``tps`` where every step is logged, else timestamps; the finer one where rounding spoils the first choice."""
    have_tps, have_clock = bool(np.isfinite(from_tps).any()), bool(np.isfinite(from_clock).any())
    if not have_tps and not have_clock:
        return "none", np.full(len(gaps), np.nan)
    prefer_tps = have_tps and (not have_clock or len(gaps) < 2 or bool(np.median(gaps[1:]) == 1))
    if have_tps and have_clock:
        by_tps, by_clock = rounding.typical
        mine, other = (by_tps, by_clock) if prefer_tps else (by_clock, by_tps)
        if mine > FINE_ENOUGH and other < mine / 2:
            prefer_tps = not prefer_tps
    first, second = (from_tps, from_clock) if prefer_tps else (from_clock, from_tps)
    return ("tps" if prefer_tps else "clock"), np.where(np.isfinite(first), first, second)


def _causes(
    train: Sequence[Row], events: Sequence[Event], validated: Sequence[int], seconds: FloatArray, gaps: IntArray
) -> list[str]:
    """What the log reports between a row and the one before it, after the first row."""
    causes = [""] * len(train)
    if not train:
        return causes
    lines = np.array([row.line for row in train])
    level = float(np.nanmedian(seconds)) if np.isfinite(seconds).any() else np.nan
    for event in events:
        index = int(np.searchsorted(lines, event.line))
        if event.kind not in PAUSES or not 0 < index < len(train):
            continue
        took, excess = event.data.get("seconds"), (seconds[index] - level) * gaps[index]
        if took is None or took >= EXPLAINS * excess:
            causes[index] = causes[index] or PAUSES[event.kind]
    for line in validated:
        index = int(np.searchsorted(lines, line))
        if 0 < index < len(train):
            causes[index] = causes[index] or "validation"
    return causes


def _disagreeing(
    from_tps: FloatArray,
    from_clock: FloatArray,
    rounding: _Rounding,
    causes: Sequence[str],
    validated: Sequence[int],
    train: Sequence[Row],
) -> tuple[int, ...]:
    """Steps whose two times differ; the first is known to, and so is one with a pause or a validation before it."""
    after = {int(i) for i in np.searchsorted([row.line for row in train], validated)} if validated else set()
    apart = np.abs(np.log(from_tps / from_clock)) > DISAGREE + rounding.tps + rounding.clock
    return tuple(row.step for i, row in enumerate(train) if i > 0 and apart[i] and not causes[i] and i not in after)
