"""Is it still the same training? Equivalence of loss curves, run by run and step by step: pure functions on arrays.

A curve passes only by showing that it is close. Whatever cannot be compared (a NaN, an infinity, a missing step,
another length, fewer than three pairs) can never be ``equivalent``; that holds by construction, since ``equivalent``
needs every inequality to be true and NaN makes each of them false.

Method: the paired log-ratio of both curves, averaged in up to four consecutive windows of steps, must lie with its
whole confidence interval over the pairs inside the margin *in every window* (an intersection-union test: each window at
the full level), and no single step may differ by more than ``POINTWISE`` margins. Windows, because a mean over all
steps hides a late divergence and a look at the last step hides everything before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from analysis.paired import CONFIDENCE, EQUIVALENT, MIN_PAIRS, UNRESOLVED

DIFFERENT = "different"
TOLERANCES = (1e-6, 1e-4, 1e-2)
WINDOWS = 4
POINTWISE = 10.0

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One run's values over its logged steps; both of shape (steps,), steps strictly increasing."""

    steps: NDArray[np.int64]
    values: Floats
    name: str = ""

    @classmethod
    def of(cls, points: Sequence[tuple[int, float]], name: str = "") -> Curve:
        """From (step, value) points; of a step that appears twice (a restart) the later one counts."""
        last = dict(points)
        steps = sorted(last)
        return cls(np.array(steps, np.int64), np.array([last[step] for step in steps], float), name)


@dataclass(frozen=True, kw_only=True)
class Window:
    """Ratio candidate/baseline over the steps first..last with its confidence interval over the pairs."""

    first: int
    last: int
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class CurveVerdict:
    """What two sets of paired curves say. Relative differences are |candidate - baseline| / |baseline|."""

    verdict: str
    """``equivalent`` | ``different`` | ``unresolved``."""
    reason: str
    pairs: int
    margin: float
    steps: int = 0
    """Steps that both arms logged."""
    bitwise: bool = False
    """Every value of every pair is the same number, as logged."""
    max_difference: float = float("nan")
    max_step: int | None = None
    mean_difference: float = float("nan")
    """Mean over steps and pairs of the relative difference."""
    ratio: float = float("nan")
    """Geometric mean over steps and pairs of candidate/baseline."""
    first_divergence: dict[float, int | None] = field(default_factory=dict)
    """First step, in any pair, that differs by more than each tolerance."""
    windows: tuple[Window, ...] = ()


def compare_curves(
    baseline: Sequence[Curve],
    candidate: Sequence[Curve],
    *,
    margin: float = 0.005,
    expected: Sequence[int] = (),
    what: str = "loss",
) -> CurveVerdict:
    """Judge paired curves: ``baseline[i]`` and ``candidate[i]`` saw the same data in the same order.

    Args:
        margin: relative difference of a window's mean that does not matter.
        expected: the steps that each run was to log; a run that lacks one was cut short. Empty: not known.
        what: the quantity's name in reasons.
    """
    assert len(baseline) == len(candidate)
    pairs = len(baseline)
    if not pairs:
        return CurveVerdict(verdict=UNRESOLVED, reason="no pair of runs to compare", pairs=0, margin=margin)
    shared = _shared_steps([*baseline, *candidate])
    base = np.array([_values_at(curve, shared) for curve in baseline]).reshape(pairs, len(shared))
    cand = np.array([_values_at(curve, shared) for curve in candidate]).reshape(pairs, len(shared))
    facts = _describe(base, cand, shared)
    verdict, reason = _refusal([*baseline, *candidate], base, cand, shared, expected, what) or ("", "")
    windows: tuple[Window, ...] = ()
    if not verdict:
        verdict, reason, windows = _equivalence(np.log(cand) - np.log(base), shared, margin, what)
    return CurveVerdict(
        verdict=verdict, reason=reason, pairs=pairs, margin=margin, steps=len(shared), windows=windows, **facts
    )


def _shared_steps(curves: Sequence[Curve]) -> NDArray[np.int64]:
    steps = curves[0].steps
    for curve in curves[1:]:
        steps = np.intersect1d(steps, curve.steps)
    return steps


def _values_at(curve: Curve, steps: NDArray[np.int64]) -> Floats:
    return curve.values[np.searchsorted(curve.steps, steps)]


def _describe(base: Floats, cand: Floats, steps: NDArray[np.int64]) -> dict:
    """The descriptive fields of the verdict; a NaN counts as an infinite difference unless both are the same NaN."""
    if not len(steps):
        return {}
    same = (base == cand) | (np.isnan(base) & np.isnan(cand))
    with np.errstate(all="ignore"):
        relative = np.where(same, 0.0, np.abs(cand - base) / np.abs(base))
        ratio = float(np.exp(np.mean(np.log(cand) - np.log(base))))
    relative = np.where(np.isnan(relative), np.inf, relative)
    worst = relative.max(0)
    beyond = {tolerance: np.flatnonzero(worst > tolerance) for tolerance in TOLERANCES}
    return {
        "bitwise": bool(same.all() and np.isfinite(base).all()),
        "max_difference": float(worst.max()),
        "max_step": int(steps[worst.argmax()]) if worst.max() > 0 else None,
        "mean_difference": float(relative.mean()),
        "ratio": ratio,
        "first_divergence": {key: int(steps[found[0]]) if found.size else None for key, found in beyond.items()},
    }


def _refusal(
    curves: Sequence[Curve],
    base: Floats,
    cand: Floats,
    shared: NDArray[np.int64],
    expected: Sequence[int],
    what: str,
) -> tuple[str, str] | None:
    """Verdict and reason where the curves cannot be held against each other at all."""
    pairs = len(base)
    for index in range(pairs):
        arms = (curves[index], curves[pairs + index])
        bad = [set(curve.steps[~np.isfinite(curve.values)].tolist()) for curve in arms]
        one_sided = bad[0] ^ bad[1]
        if one_sided:
            step = min(one_sided)
            arm = "baseline" if step in bad[0] else "candidate"
            broken = arms[0] if step in bad[0] else arms[1]
            return DIFFERENT, f"{what} of the {arm} is not finite at step {step}{_in(broken)}"
        if bad[0]:
            return UNRESOLVED, f"{what} is not finite at step {min(bad[0])} in both arms{_in(arms[0])}"
    wanted = set(expected) or set().union(*(curve.steps.tolist() for curve in curves))
    for curve in curves:
        missing = wanted - set(curve.steps.tolist())
        if missing:
            return UNRESOLVED, f"{what} is missing at {_steps(sorted(missing))}{_in(curve)}"
    if not len(shared):
        return UNRESOLVED, f"no {what} was logged"
    if (base <= 0).any() or (cand <= 0).any():
        step = shared[((base <= 0) | (cand <= 0)).any(0).argmax()]
        return UNRESOLVED, f"{what} is not positive at step {step}: a ratio means nothing there"
    if pairs < MIN_PAIRS:
        same = "; all values are the same as logged" if (base == cand).all() else ""
        return UNRESOLVED, f"{pairs} pair{'s' if pairs > 1 else ''} of runs, at least {MIN_PAIRS} are needed{same}"
    return None


def _equivalence(
    log_ratio: Floats, steps: NDArray[np.int64], margin: float, what: str
) -> tuple[str, str, tuple[Window, ...]]:
    """The statistical part, on finite log-ratios of shape (pairs, steps) with at least three pairs."""
    parts = np.array_split(np.arange(len(steps)), min(WINDOWS, len(steps)))
    means = np.stack([log_ratio[:, part].mean(1) for part in parts])
    low, high = _interval(means, CONFIDENCE)
    windows = tuple(
        Window(
            first=int(steps[part[0]]),
            last=int(steps[part[-1]]),
            ratio=float(np.exp(mean.mean())),
            low=float(np.exp(lowest)),
            high=float(np.exp(highest)),
        )
        for part, mean, lowest, highest in zip(parts, means, low, high, strict=True)
    )
    # `different` may be said if any window is out, so each is tested at its share of the error (Bonferroni).
    strict_low, strict_high = _interval(means, 1 - (1 - CONFIDENCE) / len(parts))
    bound_low, bound_high = np.log1p(-margin), np.log1p(margin)
    outside = np.flatnonzero((strict_low > bound_high) | (strict_high < bound_low))
    if outside.size:
        window = windows[int(outside[np.abs(means[outside].mean(1)).argmax()])]
        text = f"{what} differs by {100 * (window.ratio - 1):+.2g} % in steps {window.first} to {window.last}"
        return DIFFERENT, f"{text}, beyond the margin of {100 * margin:g} %", windows
    at_step = np.abs(np.expm1(log_ratio))
    limit = POINTWISE * margin
    if not (at_step <= limit).all():
        beyond_in_all = np.flatnonzero((at_step > limit).all(0))
        step = steps[int(beyond_in_all[0]) if beyond_in_all.size else int((at_step > limit).any(0).argmax())]
        pairs = "every pair" if beyond_in_all.size else "a pair"
        text = f"{what} differs by more than {100 * limit:g} % at step {step} in {pairs}"
        return (DIFFERENT if beyond_in_all.size else UNRESOLVED), text, windows
    if ((low >= bound_low) & (high <= bound_high)).all():
        return EQUIVALENT, f"{what} within {100 * margin:g} % in every part of the curve", windows
    loose = windows[int(np.maximum(high - bound_high, bound_low - low).argmax())]
    text = f"{what} in steps {loose.first} to {loose.last} may differ by {100 * (loose.low - 1):+.2g} %"
    return UNRESOLVED, f"{text} to {100 * (loose.high - 1):+.2g} %, the margin is {100 * margin:g} %", windows


def _interval(means: Floats, confidence: float) -> tuple[Floats, Floats]:
    """Student interval over the pairs for each window; means of shape (windows, pairs)."""
    pairs = means.shape[1]
    half = stdtrit(pairs - 1, (1 + confidence) / 2) * means.std(1, ddof=1) / np.sqrt(pairs)
    return means.mean(1) - half, means.mean(1) + half


def _in(curve: Curve) -> str:
    return f" ({curve.name})" if curve.name else ""


def _steps(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"{len(steps)} steps, the first is {steps[0]}"
