"""Where a run's warm-up ends, what interrupts the steady part, and when there is no steady part (numbers only, no I/O).

``find_phases`` takes seconds per step and returns a ``Phases``. Two rules are known:

``settle``
    The rule of this project. The slow first steps (compilation) and a decaying ramp end the warm-up; single slow steps
    later are listed and do not end the steady part; drift, wandering, two levels and wide spread give
    ``no_steady_state``; too few steps give ``too_short``. See harness/warmup.py and harness/stability.py.
``skip_first``
    The simple stated rule: the first ``skip`` steps are warm-up, whatever the numbers say. It never looks at the data,
    so it finds no recompile, and no lack of a steady state either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.medians import median_interval, robust_sd

if TYPE_CHECKING:
    from harness.warmup import Warmup

STEADY, NO_STEADY_STATE, TOO_SHORT = "steady", "no_steady_state", "too_short"
RULES = ("settle", "skip_first")

FloatArray = NDArray[np.float64]

MAX_STRAIGHT = 0.3
"""A fall along a straight line, less than ``slow_ratio`` high, over more of the run than this is drift."""


@dataclass
class PhasesConfig:
    """Parameters of the rule that separates warm-up from steady state (Hydra group ``phases``)."""

    rule: str = "settle"
    """settle or skip_first."""
    skip: int = 1
    """Warm-up steps of ``skip_first``; ``settle`` does not use it."""
    min_steady: int = 6
    """Fewest logged steady steps; below it the run is too_short. A 95 % interval of a median needs six."""
    slow_ratio: float = 1.25
    """A step this many times the steady median, or more, is slow: compilation at the start, a listed outlier later."""
    slow_sigmas: float = 5.0
    """A slow step is also at least this many standard deviations of the noise above the steady median."""
    max_warmup_share: float = 0.7
    """A run that has not settled within this share of its steps has no steady state."""
    max_drift: float = 0.04
    """Largest steady change from first to last steady step along a straight line, relative to the median."""
    max_wander: float = 0.05
    """Largest distance between the lowest and highest level that the steady part visits, relative to the median."""
    max_level_gap: float = 0.04
    """Largest distance between two levels that the steps alternate between, relative to the median."""
    max_spread: float = 0.25
    """Largest standard deviation of the steady steps (robust), relative to the median. Below it noise widens the
    interval of the median; above it a median says nothing."""
    max_slow_share: float = 0.15
    """Largest share of slow steps in the steady part; more are a second level, not outliers."""
    confidence: float = 0.95
    """Coverage of the interval of the steady median."""


@dataclass(frozen=True, kw_only=True)
class SlowStep:
    """One slow logged step after the warm-up; without a steady state, relative to the median of what there is."""

    step: int
    """Last step of the logged interval; the slow step itself where every step is logged."""
    cause: str
    """``recompile`` (nothing in the log explains it) or what the log says: checkpoint, validation, gc, data ..."""
    excess_s: float
    """Seconds above the steady median, over the whole interval."""
    ratio: float
    """Seconds per step relative to the steady median."""


@dataclass(frozen=True, kw_only=True)
class Phases:
    """What a rule found. Times are seconds per step; None is a number that could not be had (``reason`` says why)."""

    rule: str
    phase: str
    reason: str = ""
    warmup_steps: int | None = None
    """Number of warm-up steps, from the first step of the run."""
    first_steady_step: int | None = None
    slow_first_steps: int | None = None
    """Number of steps in the slow head of the run (compilation). Known without a steady state, and never more than
    ``warmup_steps``, which a ramp makes longer."""
    steady_steps: int = 0
    """Number of steps after the warm-up, slow ones included."""
    slow_steps: tuple[SlowStep, ...] = ()
    compile_s: float | None = None
    """Time above the steady median in warm-up and recompiles, seconds; pauses that the log explains do not count."""
    median: float | None = None
    """Median over the steady steps that are not slow, from ``settled_from`` on."""
    median_low: float | None = None
    median_high: float | None = None
    settled_from: int | None = None
    """First step used for the median: later than ``first_steady_step`` only after a ramp, whose tail would bias it."""
    mean: float | None = None
    """Mean over all steady steps, slow ones included: what the run costs per step once it is warm."""
    quartile_low: float | None = None
    quartile_high: float | None = None
    cov: float | None = None
    """Standard deviation over mean of all steady steps, slow ones included."""
    noise: float | None = None
    """Standard deviation of the undisturbed steady steps, robust, relative to the median."""
    measures: dict[str, float] = field(default_factory=dict)
    """What the decision was based on: drift, wander, level_gap, spread, ramp_excess, ramp_tau ..."""

    @property
    def recompile_steps(self) -> tuple[int, ...]:
        return tuple(slow.step for slow in self.slow_steps if slow.cause == "recompile")


@dataclass(frozen=True)
class Series:
    """Logged step times: ``seconds[i]`` per step over ``num_steps[i]`` steps that end with ``last_step[i]``."""

    seconds: FloatArray
    last_step: NDArray[np.int64]
    num_steps: NDArray[np.int64]
    cause: tuple[str, ...]
    """What the log says interrupted the interval (checkpoint, ...), or an empty string."""

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def span(self) -> int:
        """Steps from the first to the last, logged or not."""
        return int(self.last_step[-1] - self.last_step[0] + self.num_steps[0])

    def take(self, indices: NDArray[np.int64]) -> Series:
        cause = tuple(self.cause[i] for i in indices)
        return Series(self.seconds[indices], self.last_step[indices], self.num_steps[indices], cause)


def find_phases(
    step_s: ArrayLike,
    config: PhasesConfig | None = None,
    *,
    last_step: ArrayLike | None = None,
    num_steps: ArrayLike | None = None,
    causes: Sequence[str] | None = None,
) -> Phases:
    """Apply the rule of ``config`` to step times.

    ``step_s``: shape (n,), seconds per step (any unit will do), in order. Where not every step is logged, ``last_step``
    (n,) is the step each value was logged at and ``num_steps`` (n,) how many steps it is the mean of. ``causes`` (n,)
    names pauses known from elsewhere ("checkpoint", "" for none): such a step is never taken for a recompile.

    Raises ValueError for an unknown rule, values that are not positive and finite, or lengths that differ.
    """
    config = config or PhasesConfig()
    if config.rule not in RULES:
        raise ValueError(f"unknown phases.rule '{config.rule}'; known are {', '.join(RULES)}")
    series = _series(step_s, last_step, num_steps, causes)
    if len(series) == 0:
        return Phases(rule=config.rule, phase=TOO_SHORT, reason="no step time at all")
    return (_settle if config.rule == "settle" else _skip_first)(series, config)


def _series(
    step_s: ArrayLike, last_step: ArrayLike | None, num_steps: ArrayLike | None, causes: Sequence[str] | None
) -> Series:
    seconds = np.asarray(step_s, dtype=np.float64)
    n = len(seconds)
    last = np.arange(1, n + 1) if last_step is None else np.asarray(last_step, dtype=np.int64)
    if num_steps is None:
        count = np.diff(last, prepend=last[0] - 1) if len(last) else np.ones(0, dtype=np.int64)
    else:
        count = np.asarray(num_steps, dtype=np.int64)
    cause = tuple(causes) if causes is not None else ("",) * n
    if not len(last) == len(count) == len(cause) == n:
        raise ValueError(f"step_s has {n} values, last_step {len(last)}, num_steps {len(count)}, causes {len(cause)}")
    if n and not (np.isfinite(seconds).all() and (seconds > 0).all() and (count > 0).all()):
        raise ValueError("step times must be finite and positive, steps must increase")
    return Series(seconds, last, count, cause)


def _skip_first(series: Series, config: PhasesConfig) -> Phases:
    first = int(series.last_step[0] - series.num_steps[0] + 1)
    start = int((series.last_step < first + config.skip).sum())
    if len(series) - start < config.min_steady:
        return _too_short(series, start, config)
    return _steady(series, start, start, (), config, {})


def _settle(series: Series, config: PhasesConfig) -> Phases:
    from harness.stability import judge
    from harness.warmup import find_warmup, reference, slow_mask

    if len(series) <= config.min_steady:
        return _too_short(series, 1, config)
    level, noise = reference(series)
    slow = slow_mask(series.seconds, series.num_steps, level, noise, config)
    slow_at = np.flatnonzero(slow).tolist()
    paused = slow & np.array([bool(cause) for cause in series.cause])
    plain = np.flatnonzero(~paused)
    rest = series.take(plain)
    if len(rest) <= config.min_steady:
        return _too_short(series, 1, config)
    warmup = find_warmup(rest, config)
    start = int(plain[warmup.end - 1]) + 1 if warmup.end else 0
    measures = {}
    if warmup.ramp is not None:
        measures = {"ramp_excess": warmup.ramp.excess, "ramp_scale": warmup.ramp.scale}
    share = (series.last_step[start - 1] - series.last_step[0] + series.num_steps[0]) / series.span if start else 0.0
    if (why := _unsettled(warmup, share, config)) and len(rest) >= 3 * config.min_steady:
        found = _no_steady_state(series, warmup.head, slow_at, (why,), config, measures)
    elif len(rest) - warmup.end < config.min_steady:
        found = _too_short(series, start, config)
    elif (verdict := judge(rest, warmup, config)).reasons:
        found = _no_steady_state(series, start, slow_at, verdict.reasons, config, measures | verdict.measures)
    else:
        late = (int(i) for i in np.flatnonzero(paused) if i >= start)
        slow_steps = sorted({*(int(plain[i]) for i in verdict.slow), *late})
        settled = int(plain[min(warmup.settled, len(plain) - config.min_steady)])
        found = _steady(series, start, max(start, settled), slow_steps, config, measures | verdict.measures)
    return replace(found, slow_first_steps=int(rest.num_steps[: warmup.head].sum()))


def _unsettled(warmup: Warmup, share: float, config: PhasesConfig) -> str:
    """Why a warm-up that takes ``share`` of the run is none, or nothing."""
    if share > config.max_warmup_share:
        return f"not settled within {config.max_warmup_share:.0%} of the steps (warm-up would end at {share:.0%})"
    ramp = warmup.ramp
    if ramp is None or ramp.shape != "straight" or share <= MAX_STRAIGHT:
        return ""
    if config.max_drift < ramp.excess < config.slow_ratio - 1:
        return f"falls by {ramp.excess:.1%} along a straight line over {share:.0%} of the steps: drift, not warm-up"
    return ""


def _too_short(series: Series, start: int, config: PhasesConfig) -> Phases:
    left = max(0, len(series) - start)
    return Phases(
        rule=config.rule,
        phase=TOO_SHORT,
        reason=f"{left} logged step{'s' * (left != 1)} after a warm-up of {start}; {config.min_steady} are needed",
    )


def _no_steady_state(
    series: Series,
    start: int,
    slow: Sequence[int],
    reasons: Sequence[str],
    config: PhasesConfig,
    measures: dict[str, float],
) -> Phases:
    """No headline; mean, quartiles, CoV and slow steps of what follows the slow first steps describe what there is."""
    seconds = series.seconds[start:]
    return Phases(
        rule=config.rule,
        phase=NO_STEADY_STATE,
        reason="; ".join(reasons),
        slow_steps=_listed(series, [i for i in slow if i >= start], float(np.median(seconds))),
        quartile_low=float(np.quantile(seconds, 0.25)),
        quartile_high=float(np.quantile(seconds, 0.75)),
        **_mean_and_cov(seconds, series.num_steps[start:]),
        measures=measures,
    )


def _listed(series: Series, slow: Sequence[int], level: float) -> tuple[SlowStep, ...]:
    """The slow steps at these indices, relative to ``level`` seconds per step."""
    return tuple(
        SlowStep(
            step=int(series.last_step[i]),
            cause=series.cause[i] or "recompile",
            excess_s=float((series.seconds[i] - level) * series.num_steps[i]),
            ratio=float(series.seconds[i] / level),
        )
        for i in slow
    )


def _mean_and_cov(seconds: FloatArray, num_steps: NDArray[np.int64]) -> dict[str, float]:
    mean = float(np.average(seconds, weights=num_steps))
    return {"mean": mean, "cov": float(np.sqrt(np.average((seconds - mean) ** 2, weights=num_steps)) / mean)}


def _steady(
    series: Series, start: int, settled: int, slow: Sequence[int], config: PhasesConfig, measures: dict[str, float]
) -> Phases:
    """The result for a steady part from index ``start`` on; ``slow`` are indices of its slow steps."""
    quiet = np.arange(len(series)) >= settled
    quiet[list(slow)] = False
    values = series.seconds[quiet]
    median, low, high = median_interval(values, config.confidence)
    excess = (series.seconds - median) * series.num_steps
    compiling = [float(excess[i]) for i in (*range(start), *slow) if not series.cause[i]]
    first_of = series.last_step - series.num_steps + 1
    return Phases(
        rule=config.rule,
        phase=STEADY,
        warmup_steps=int(first_of[start] - first_of[0]),
        first_steady_step=int(first_of[start]),
        steady_steps=int(series.last_step[-1] - first_of[start] + 1),
        slow_steps=_listed(series, slow, median),
        compile_s=max(0.0, sum(compiling)),
        median=median,
        median_low=low,
        median_high=high,
        settled_from=int(first_of[settled]),
        quartile_low=float(np.quantile(values, 0.25)),
        quartile_high=float(np.quantile(values, 0.75)),
        **_mean_and_cov(series.seconds[start:], series.num_steps[start:]),
        noise=robust_sd(values) / median,
        measures=measures,
    )
