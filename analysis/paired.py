"""Is the candidate's number higher? Statistics of paired runs: pure functions on arrays, nothing is read or written.

The unit is the run, never the step: steps of one run share its offset (placement, clocks, neighbours), and tests over
steps call noise significant. Every function takes natural logarithms of positive numbers, one per run, and works along
the last axis, so that thousands of simulated comparisons are one call.

Model: ``log y = machine(time) + arm + noise``. Pairs that ran next to each other share the machine; their difference
holds the effect. Where the candidate did not run, on average, at the same time as the baseline (a blocked order, a
missing run), a linear drift would look like an effect: it is estimated from the pairs' means, which are independent of
their differences, subtracted, and its uncertainty added to the interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

FASTER, SLOWER, EQUIVALENT, UNRESOLVED = "faster", "slower", "equivalent", "unresolved"
MIN_PAIRS = 3
"""With fewer pairs the spread between runs is a guess; nothing is concluded."""
CONFIDENCE, POWER = 0.95, 0.80
MAX_PLANNED_PAIRS = 10_000

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A log-ratio with its confidence interval; fields are arrays over the comparisons (or 0-d for one)."""

    estimate: Floats
    half_width: Floats
    df: Floats
    """Degrees of freedom of Student's t."""
    pair_sd: Floats
    """Standard deviation of the pairs' log-ratios."""
    drift_removed: Floats
    """What a linear drift had contributed to the plain mean of the differences; 0 where the order balances it out."""

    @property
    def ratio(self) -> Floats:
        return _exp(self.estimate)

    @property
    def low(self) -> Floats:
        return _exp(self.estimate - self.half_width)

    @property
    def high(self) -> Floats:
        return _exp(self.estimate + self.half_width)


def paired_interval(
    baseline: ArrayLike,
    candidate: ArrayLike,
    baseline_position: ArrayLike | None = None,
    candidate_position: ArrayLike | None = None,
    *,
    confidence: float = CONFIDENCE,
    resolution: float = 0.0,
) -> Interval:
    """Interval of the log-ratio candidate/baseline.

    Args:
        baseline, candidate: logarithms, shape (..., pairs); entry i of both belongs to pair i.
        baseline_position, candidate_position: place of each run in the order of the sweep, shape (pairs,); None where
            it is not known, then no drift can be removed.
        resolution: relative rounding of one number; the interval is never narrower.

    Returns:
        An interval of shape (...); NaN half widths for fewer than two pairs.
    """
    base, cand = np.asarray(baseline, float), np.asarray(candidate, float)
    difference = cand - base
    pairs = difference.shape[-1]
    estimate, df = difference.mean(-1), np.full(difference.shape[:-1], pairs - 1.0)
    if pairs < 2:
        unknown = np.full(difference.shape[:-1], np.nan)
        return Interval(estimate=estimate, half_width=unknown, df=df, pair_sd=unknown, drift_removed=unknown * 0)
    sd = difference.std(-1, ddof=1)
    variance = sd**2 / pairs
    removed = np.zeros_like(estimate)
    if baseline_position is not None and candidate_position is not None and pairs >= MIN_PAIRS:
        first, second = np.asarray(baseline_position, float), np.asarray(candidate_position, float)
        gap = float(np.mean(second - first))
        slope, slope_variance = _slope((base + cand) / 2, (first + second) / 2)
        removed, extra = slope * gap, slope_variance * gap**2
        if gap != 0:
            df = _welch_satterthwaite(variance, pairs - 1, extra, pairs - 2)
            estimate, variance = estimate - removed, variance + extra
    half_width = stdtrit(df, (1 + confidence) / 2) * np.sqrt(variance)
    return Interval(
        estimate=estimate, half_width=np.maximum(half_width, resolution), df=df, pair_sd=sd, drift_removed=removed
    )


def judge(interval: Interval, *, pairs: int, margin: float, floor: float = 0.0) -> NDArray[np.str_]:
    """The verdict on each comparison, for a quantity of which more is better.

    Args:
        margin: relative difference that does not matter, e.g. 0.01; the whole interval inside it is ``equivalent``.
        floor: largest relative difference that identical arms may show here (from A/A runs). An effect that is not
            above it is not called; where it is above the margin, nothing is equivalent: identical arms would not be.

    Returns:
        ``equivalent`` | ``faster`` | ``slower`` | ``unresolved``; NaN anywhere is ``unresolved``, since no comparison
        with it holds.
    """
    if pairs < MIN_PAIRS:
        return np.full(np.shape(interval.estimate), UNRESOLVED)
    above_floor = np.abs(np.expm1(interval.estimate)) > floor
    return np.select(
        [
            (interval.low >= 1 - margin) & (interval.high <= 1 + margin) & (floor <= margin),
            (interval.low > 1) & above_floor,
            (interval.high < 1) & above_floor,
        ],
        [EQUIVALENT, FASTER, SLOWER],
        UNRESOLVED,
    )


@dataclass(frozen=True, kw_only=True)
class Power:
    """What a design can see."""

    detectable: float
    """Smallest relative effect that it finds with 80 % chance; NaN where the spread is unknown."""
    pairs_needed: int | None
    """Pairs that would find ``effect``; None where the spread is unknown or more than 10,000 are needed."""
    effect: float


def power(interval: Interval, pairs: int, *, effect: float = 0.01, confidence: float = CONFIDENCE) -> Power:
    """Smallest effect that this comparison (0-d interval) can find, and how many pairs would find ``effect``."""
    sd, df = float(interval.pair_sd), float(interval.df)
    if pairs < 2 or not np.isfinite(sd):
        return Power(detectable=float("nan"), pairs_needed=None, effect=effect)
    quantile = (1 + confidence) / 2
    standard_error = float(interval.half_width) / stdtrit(df, quantile)
    detectable = float(_exp((stdtrit(df, quantile) + stdtrit(df, POWER)) * standard_error) - 1)
    counts = np.arange(MIN_PAIRS, MAX_PLANNED_PAIRS + 1)
    reach = (stdtrit(counts - 1, quantile) + stdtrit(counts - 1, POWER)) * sd / np.sqrt(counts)
    enough = np.flatnonzero(reach <= np.log1p(effect))
    return Power(detectable=detectable, pairs_needed=int(counts[enough[0]]) if enough.size else None, effect=effect)


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A relative effect that is not the kernel's, with its two-sided p value; NaN where it cannot be tested."""

    effect: float
    p: float


def drift(log_values: ArrayLike, positions: ArrayLike) -> Trend:
    """Relative change of the machine over the whole sweep, from the pairs' means, shape (pairs,)."""
    values, places = np.asarray(log_values, float), np.asarray(positions, float)
    if len(values) < MIN_PAIRS or np.ptp(places) == 0:
        return Trend(effect=float("nan"), p=float("nan"))
    slope, variance = _slope(values, places)
    return Trend(effect=float(np.expm1(slope * np.ptp(places))), p=_p_value(slope, variance, len(values) - 2))


def order_effect(log_ratios: ArrayLike, candidate_second: ArrayLike) -> Trend:
    """Relative effect of running second in a pair, from pairs run in both orders; log_ratios of shape (pairs,)."""
    ratios, second = np.asarray(log_ratios, float), np.asarray(candidate_second, bool)
    if len(ratios) < MIN_PAIRS + 1 or second.all() or not second.any():
        return Trend(effect=float("nan"), p=float("nan"))
    slope, variance = _slope(ratios, np.where(second, 1.0, -1.0))
    return Trend(effect=float(np.expm1(slope)), p=_p_value(slope, variance, len(ratios) - 2))


def outliers(values: ArrayLike, *, limit: float = 3.5) -> list[int]:
    """Indices of values whose modified z score (median and MAD; Iglewicz and Hoaglin 1993) exceeds ``limit``."""
    data = np.asarray(values, float)
    if len(data) < 4:
        return []
    distance = np.abs(data - np.median(data))
    spread = np.median(distance)
    if spread == 0:
        return [int(i) for i in np.flatnonzero(distance > 0)] if np.count_nonzero(distance) < len(data) / 4 else []
    return [int(i) for i in np.flatnonzero(0.6745 * distance / spread > limit)]


def _exp(values: Floats) -> Floats:
    """Infinite without a word where the logarithm is absurd."""
    with np.errstate(over="ignore"):
        return np.exp(values)


def _slope(values: Floats, places: Floats) -> tuple[Floats, Floats]:
    """Least-squares slope along the last axis and its variance; slope 0 where the places do not differ."""
    centred = places - places.mean()
    spread = float(centred @ centred)
    count = len(places)
    if spread == 0 or count < MIN_PAIRS:
        return np.zeros(values.shape[:-1]), np.zeros(values.shape[:-1])
    slope = (values @ centred) / spread
    residual = values - values.mean(-1, keepdims=True) - slope[..., None] * centred
    return slope, (residual**2).sum(-1) / (count - 2) / spread


def _welch_satterthwaite(first: Floats, first_df: float, second: Floats, second_df: float) -> Floats:
    """Degrees of freedom of a sum of two independent variance estimates; the smaller one where both are 0."""
    denominator = first**2 / first_df + second**2 / second_df
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(denominator > 0, (first + second) ** 2 / denominator, min(first_df, second_df))


def _p_value(slope: Floats, variance: Floats, df: float) -> float:
    if variance <= 0:
        return float("nan")
    return float(2 * stdtr(df, -abs(float(slope)) / np.sqrt(float(variance))))
