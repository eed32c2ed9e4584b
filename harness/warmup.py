"""Where the warm-up ends: a head of slow steps (compilation), then perhaps an excess that decays (a ramp).

The head is plain: steps far above the level of the run's last half. The ramp is not found by thresholds on single
steps, since its tail sinks below the noise: decaying shapes are fitted by least squares, and the fit says from which
step on the excess is below the noise. A head step that does not fit the ramp is taken out of it, at a price.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.medians import lag_correlation, robust_sd

if TYPE_CHECKING:
    from harness.phases import PhasesConfig, Series

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

HEAD_GAP = 2
"""Normal steps that may lie between two slow ones of the head: compilations of the first steps belong together."""
HEAD_DENSITY = 0.5
"""At least this share of the head is slow; a slow step every now and then is no warm-up."""
FIT_STEPS = 20_000
"""A ramp is sought in the first so many steps; whatever is slower than that is drift."""
RAMP_P = 1e-4
"""A ramp must be this improbable under a constant level; so small because many shapes are tried."""
FREE_STEP = 9.0
"""Price, in noise variances, of taking one more head step out of the ramp: a deviation of three sigma."""
SETTLED = 0.25
"""The median begins where the fitted excess is below this share of the noise, so that the tail does not bias it."""
MIN_NOISE = 5e-4
"""An excess below this share of a step does not matter, however quiet the run."""
SHAPES = {
    "exponential": lambda steps, scale: np.exp(-steps / scale),
    "straight": lambda steps, scale: np.clip(1 - steps / scale, 0, None),
}


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """A fitted excess ``level x (1 + excess x shape(steps since start / scale))``."""

    start: int
    """Steps before the ramp begins, counted from the first step of the series."""
    shape: str
    scale: float
    excess: float
    noise: float
    """Standard deviation of one step around the fit, relative to it."""
    residuals: FloatArray
    """Logged steps relative to the fit, in order."""

    def end(self, below: float) -> float:
        """Steps from the first of the series until the excess is below ``below``, relative to the level."""
        if self.excess <= below:
            return float(self.start)
        if self.shape == "exponential":
            return self.start + self.scale * math.log(self.excess / below)
        return self.start + self.scale * (1 - below / self.excess)


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """Indices into the logged steps: ``head`` slow ones, warm-up until ``end``, no tail from ``settled`` on."""

    head: int
    end: int
    settled: int
    ramp: Ramp | None


def slow_mask(
    seconds: FloatArray, num_steps: NDArray[np.int64], level: float, noise: float, config: PhasesConfig
) -> BoolArray:
    """Which logged steps are slow against ``level``: by the ratio (of one step in the interval) and by the noise."""
    above = np.maximum((config.slow_ratio - 1) / num_steps, config.slow_sigmas * noise)
    return seconds > level * (1 + above)


def reference(series: Series) -> tuple[float, float]:
    """Level and relative noise of the last half, without the steps that the log explains where enough are left."""
    half = np.arange(len(series)) >= len(series) // 2
    plain = half & np.array([not cause for cause in series.cause])
    values = series.seconds[plain if plain.sum() >= 3 else half]
    level = float(np.median(values))
    return level, robust_sd(values) / level


def find_warmup(series: Series, config: PhasesConfig) -> Warmup:
    """The warm-up of a series that has no pause in it."""
    level, noise = reference(series)
    slow = slow_mask(series.seconds, series.num_steps, level, noise, config)
    head = head_length(slow)
    usable = ~slow
    usable[:head] = True
    ramp = find_ramp(series, usable, head, level)
    if ramp is None:
        return Warmup(head=head, end=head, settled=head, ramp=None)
    done = series.last_step - (series.last_step[0] - series.num_steps[0])
    end = max(int((done <= round(ramp.end(ramp.noise))).sum()), int((done <= ramp.start).sum()))
    settled = int((done <= round(ramp.end(SETTLED * ramp.noise))).sum())
    return Warmup(head=head, end=end, settled=max(end, settled), ramp=ramp)


def head_length(slow: BoolArray) -> int:
    """Length of the head that begins at the first logged step; 0 if that step is not slow."""
    head = 0
    for count, i in enumerate(np.flatnonzero(slow), start=1):
        if i > head + HEAD_GAP or (head == 0 and i > 0) or count < HEAD_DENSITY * (i + 1):
            break
        head = int(i) + 1
    return head


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """Weighted least squares of level and excess for the best shape from logged step ``first`` on."""

    first: int
    shape: str
    scale: float
    level: float
    excess: float
    rss: float
    rss_flat: float
    """The same for a constant level."""
    values: FloatArray
    fitted: FloatArray
    num_steps: NDArray[np.int64]


def find_ramp(series: Series, usable: BoolArray, head: int, level: float) -> Ramp | None:
    """The ramp behind the first compilations, or None if a constant level after the head explains the steps as well."""
    starts = sorted({*range(min(head, 8) + 1), *range(max(0, head - 2), head + 1)})
    fits = [_fit(series, usable, first, level) for first in starts]
    if any(fit is None for fit in fits):
        return None
    known = [fit for fit in fits if fit is not None]
    variance = min(fit.rss / (len(fit.values) - 3) for fit in known)
    if variance <= 0:  # every step alike to the last digit
        return None
    best = min(known, key=lambda fit: fit.rss / variance + FREE_STEP * fit.first)
    best = _refine(series, usable, best, level)
    residuals = (best.values / best.fitted - 1) * np.sqrt(best.num_steps)
    correlation = min(0.95, max(0.0, lag_correlation(residuals)))
    flat = known[-1].rss_flat / variance + FREE_STEP * (head - best.first)
    degrees = (len(best.values) - 3) * (1 - correlation) / (1 + correlation)
    improbable = (best.rss / variance / flat) ** (degrees / 2)  # the tail of F with 2 and `degrees` degrees of freedom
    if best.excess <= 0 or improbable > RAMP_P:
        return None
    inner = residuals[np.abs(residuals) <= 4 * robust_sd(residuals)]
    before = series.last_step[best.first] - series.num_steps[best.first] - series.last_step[0] + series.num_steps[0]
    return Ramp(
        start=int(before),
        shape=best.shape,
        scale=best.scale,
        excess=best.excess / best.level,
        noise=max(MIN_NOISE, float(np.sqrt(inner @ inner / max(1, len(inner) - 3)))),
        residuals=best.values / best.fitted,
    )


def _fit(series: Series, usable: BoolArray, first: int, level: float) -> _Fit | None:
    """The best shape of the whole dictionary; None with too few steps to tell a ramp from anything."""
    chosen = np.flatnonzero(usable[first:]) + first
    begin = series.last_step[chosen] - series.num_steps[chosen]
    chosen = chosen[begin - begin[:1] < FIT_STEPS]
    if len(chosen) < 6:
        return None
    values, num_steps = series.seconds[chosen] / level, series.num_steps[chosen]
    stop = series.last_step[chosen] - (series.last_step[first] - series.num_steps[first])
    scales = _scales(int(stop[-1]))
    cumulative = _cumulative(int(stop[-1]))
    shapes = (cumulative[:, stop] - cumulative[:, stop - num_steps]) / num_steps
    return _least_squares(first, scales, shapes, values, num_steps, num_steps / values**2)


def _refine(series: Series, usable: BoolArray, fit: _Fit, level: float) -> _Fit:
    """The same fit on a finer grid of scales around the best one, weighted by the fit instead of by the values."""
    chosen = (np.flatnonzero(usable[fit.first :]) + fit.first)[: len(fit.values)]
    stop = series.last_step[chosen] - (series.last_step[fit.first] - series.num_steps[fit.first])
    scales = [(fit.shape, scale) for scale in fit.scale * np.geomspace(1 / 1.25, 1.25, 41)]
    cumulative = _cumulate(scales, int(stop[-1]))
    shapes = (cumulative[:, stop] - cumulative[:, stop - fit.num_steps]) / fit.num_steps
    return _least_squares(fit.first, scales, shapes, fit.values, fit.num_steps, fit.num_steps / fit.fitted**2)


def _least_squares(
    first: int,
    scales: list[tuple[str, float]],
    shapes: FloatArray,
    values: FloatArray,
    num_steps: NDArray[np.int64],
    weights: FloatArray,
) -> _Fit:
    """Level and excess for every shape (rows of ``shapes``) at once; the best with an excess above 0."""
    total = weights.sum()
    mean, means = (weights @ values) / total, (shapes @ weights) / total
    centred, deviation = values - mean, shapes - means[:, None]
    across, along = deviation @ (weights * centred), (deviation * deviation) @ weights
    excess = np.where(along > 1e-12, across / np.maximum(along, 1e-12), 0.0)
    flat = float(weights @ (centred * centred))
    rss = np.where(excess > 0, flat - excess * across, flat)
    best = int(np.argmin(rss))
    shape, scale = scales[best]
    level = float(mean - excess[best] * means[best])
    return _Fit(
        first=first,
        shape=shape,
        scale=float(scale),
        level=level,
        excess=max(0.0, float(excess[best])),
        rss=max(0.0, float(rss[best])),
        rss_flat=flat,
        values=values,
        fitted=level + excess[best] * shapes[best] if excess[best] > 0 else np.full(len(values), mean),
        num_steps=num_steps,
    )


@lru_cache(maxsize=8)
def _scales(num_steps: int) -> list[tuple[str, float]]:
    """The dictionary for a series of ``num_steps`` steps; it reaches beyond the run, so that drift is not cut short."""
    return [("exponential", scale) for scale in np.geomspace(0.4, 1.5 * num_steps, 45)] + [
        ("straight", scale) for scale in np.geomspace(2.0, max(4.0, 1.5 * num_steps), 30)
    ]


@lru_cache(maxsize=8)
def _cumulative(num_steps: int) -> FloatArray:
    return _cumulate(_scales(num_steps), num_steps)


def _cumulate(scales: list[tuple[str, float]], num_steps: int) -> FloatArray:
    """Sums of each shape over the first 0 .. num_steps steps, (shapes, num_steps + 1); differences: interval means."""
    steps = np.arange(num_steps)
    sums = np.zeros((len(scales), num_steps + 1))
    for row, (shape, scale) in enumerate(scales):
        np.cumsum(SHAPES[shape](steps, scale), out=sums[row, 1:])
    return sums
