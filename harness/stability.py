"""Whether what follows the warm-up is a steady state: drift, wandering, two levels, spread; and which steps are slow.

Each test compares a size that would matter (its limit in the configuration) with what the noise alone would show, and
needs both to be exceeded; the constants behind the second were set by simulation so that white noise trips each of them
in about one series of 500 (tests/phases/test_stability.py holds the whole to 2 %).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.medians import MAD_TO_SD, lag_correlation, robust_sd
from harness.warmup import Warmup, slow_mask

if TYPE_CHECKING:
    from harness.phases import PhasesConfig, Series

FloatArray = NDArray[np.float64]

BLOCKS = 9
"""Blocks whose means show where the level wanders; at least ``BLOCK_STEPS`` logged steps each."""
BLOCK_STEPS = 5
MEMORY_ALLOWANCE = {True: 0.06, False: 0.085}
"""Largest allowance for noise with memory, by whether neighbouring blocks are alike: set between noise of 3 % with a
correlation of 0.6 (1 to 2 % of such series exceed it) and random walks over 15 to 20 % (5 % of them do not)."""
DISTINCT_LEVELS = 8.0
"""Levels so many widths apart are two, however few steps there are: the best split of nine normal values exceeds that
in about one series of 600."""
CORRELATION_ENOUGH = 20
"""Fewer values say nothing useful about their correlation."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """``reasons`` is empty for a steady state; ``slow`` are indices of the slow steps after the warm-up."""

    slow: tuple[int, ...]
    reasons: tuple[str, ...]
    measures: dict[str, float] = field(default_factory=dict)


def judge(series: Series, warmup: Warmup, config: PhasesConfig) -> Verdict:
    """Look at the steps from ``warmup.end`` on (at least ``config.min_steady`` of them)."""
    steady, counts = series.seconds[warmup.end :], series.num_steps[warmup.end :]
    level, noise = _level(steady, config)
    slow = slow_mask(steady, counts, level, noise, config)
    quiet, steps = steady[~slow] / level, series.last_step[warmup.end :][~slow].astype(float)
    measures: dict[str, float] = {}
    reasons = [
        _slow_share(slow, config, measures),
        _drift(quiet, steps, config, measures),
        _wander(quiet, warmup, config, measures),
        _two_levels(quiet, config, measures),
        _spread(quiet, config, measures),
    ]
    return Verdict(
        slow=tuple(int(i) + warmup.end for i in np.flatnonzero(slow)),
        reasons=tuple(reason for reason in reasons if reason),
        measures=measures,
    )


def _level(values: FloatArray, config: PhasesConfig) -> tuple[float, float]:
    """Median and relative noise, a second time without what the first calls slow."""
    level = float(np.median(values))
    noise = robust_sd(values) / level
    inner = values[values <= level * (1 + max(config.slow_ratio - 1, config.slow_sigmas * noise))]
    level = float(np.median(inner))
    return level, robust_sd(inner) / level


def _slow_share(slow: NDArray[np.bool_], config: PhasesConfig, measures: dict[str, float]) -> str:
    share = measures["slow_share"] = float(slow.mean())
    if share > config.max_slow_share and slow.sum() >= 2:
        return f"{share:.0%} of the steps are slow (at most {config.max_slow_share:.0%}): a second level, not outliers"
    return ""


def _drift(quiet: FloatArray, steps: FloatArray, config: PhasesConfig, measures: dict[str, float]) -> str:
    """A straight line through the steps, against the standard error of its slope (correlated noise allowed for)."""
    centred, span = steps - steps.mean(), steps[-1] - steps[0]
    slope = (centred @ (quiet - quiet.mean())) / (centred @ centred)
    residuals = quiet - quiet.mean() - slope * centred
    correlation = _bounded_correlation(residuals, 0.6)
    error = math.sqrt((residuals @ residuals) / (len(quiet) - 2) / (centred @ centred)) * span
    error *= math.sqrt((1 + correlation) / (1 - correlation))
    drift = measures["drift"] = float(slope * span)
    errors = 3.5 * (1 + 4 / len(quiet) if len(quiet) < CORRELATION_ENOUGH else 1)
    if abs(drift) > max(config.max_drift, errors * error):
        return f"drift of {drift:+.1%} from first to last steady step (at most {config.max_drift:.0%})"
    return ""


def _wander(quiet: FloatArray, warmup: Warmup, config: PhasesConfig, measures: dict[str, float]) -> str:
    """Range of block means: of the steady steps, and of all steps around a fitted ramp, which it must explain well."""
    length = max(BLOCK_STEPS, len(quiet) // BLOCKS)
    if len(quiet) < 3 * length:
        return ""
    jumps = np.diff(quiet)
    white = MAD_TO_SD * float(np.median(np.abs(jumps - np.median(jumps)))) / math.sqrt(2)
    correlation = _bounded_correlation(quiet, 0.6)
    long_run = white / math.sqrt(1 - correlation) * math.sqrt((1 + correlation) / (1 - correlation) / length)
    means = [_block_means(quiet, length)]
    if warmup.ramp is not None:
        means.append(_block_means(warmup.ramp.residuals, length))
    wander = measures["wander"] = max(float(np.ptp(block)) for block in means)
    # Noise with memory moves block means further. That is allowed for, but only so far: a random walk has memory too.
    allowance = MEMORY_ALLOWANCE[all(_neighbours_alike(block) for block in means)]
    limit = max(config.max_wander, 5.8 * white / math.sqrt(length), min(allowance, 5.5 * long_run))
    measures["wander_limit"] = limit
    if wander > limit:
        return f"the level wanders over {wander:.1%} (at most {limit:.1%} with this noise)"
    return ""


def _block_means(values: FloatArray, length: int) -> FloatArray:
    return np.array([block.mean() for block in np.array_split(values, max(3, len(values) // length))])


def _neighbours_alike(means: FloatArray) -> bool:
    """Von Neumann's ratio: 2 for independent values, small for a wandering level."""
    centred = means - means.mean()
    return len(means) >= 7 and float(np.sum(np.diff(means) ** 2)) < float(centred @ centred)


def _two_levels(quiet: FloatArray, config: PhasesConfig, measures: dict[str, float]) -> str:
    """The best split into a lower and an upper group: two levels if few steps lie between, or if they take turns."""
    n = len(quiet)
    ordered, lower = np.sort(quiet), np.arange(1, n)
    sums, squares = np.cumsum(ordered), np.cumsum(ordered**2)
    low, high = sums[:-1] / lower, (sums[-1] - sums[:-1]) / (n - lower)
    within = squares[-1] - lower * low**2 - (n - lower) * high**2
    fair = (np.minimum(lower, n - lower) >= max(2, 0.1 * n)).nonzero()[0]
    if len(fair) == 0:
        return ""
    split = int(fair[np.argmin(within[fair])])
    gap = measures["level_gap"] = float(high[split] - low[split])
    if gap <= config.max_level_gap:
        return ""
    width = math.sqrt(max(float(within[split]), 1e-18) / (n - 2))
    valley = _valley(ordered, low[split], high[split], width)
    share = min(split + 1, n - split - 1) / n
    widths = sorted((ordered[: split + 1].std(), ordered[split + 1 :].std()))
    apart = gap / width > 3.2 + 18 / n + max(0.0, 8 / n - 0.2) and valley < 0.75
    alike = widths[1] < 1.7 * widths[0] and share > 0.2
    turns = n >= 12 and lag_correlation(quiet) < -max(0.5, 2.4 / math.sqrt(n))  # white noise: 0.5 % of short runs
    distinct = gap / width > DISTINCT_LEVELS and share > 0.3  # in short runs no shape can be seen, only the distance
    if valley < 0.9 - 3.5 / math.sqrt(n) or (apart and alike) or turns or distinct:
        return f"two levels {gap:.1%} apart (at most {config.max_level_gap:.0%})"
    return ""


def _valley(ordered: FloatArray, low: float, high: float, width: float) -> float:
    """Lowest density between two levels relative to the lower of their peaks (kernel estimate); 1 without a valley."""
    at = np.linspace(low - width, high + width, 41)
    bandwidth = 1.3 * width * len(ordered) ** -0.2
    density = np.exp(-0.5 * ((at[:, None] - ordered) / bandwidth) ** 2).sum(axis=1)
    deepest = 10 + int(np.argmin(density[10:31]))
    return float(density[deepest] / min(density[: deepest + 1].max(), density[deepest:].max()))


def _spread(quiet: FloatArray, config: PhasesConfig, measures: dict[str, float]) -> str:
    """Robust standard deviation, with two standard errors (1.17 sd / sqrt(n) each) of allowance."""
    spread = measures["spread"] = robust_sd(quiet)
    if spread > config.max_spread * (1 + 2.34 / math.sqrt(len(quiet))):
        return f"the steps spread by {spread:.1%} (at most {config.max_spread:.0%})"
    return ""


def _bounded_correlation(values: FloatArray, largest: float) -> float:
    if len(values) < CORRELATION_ENOUGH:
        return 0.0
    return min(largest, max(0.0, lag_correlation(values) + 1 / len(values)))
