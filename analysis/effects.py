"""One quantity over all pairs of runs: from runs to numbers, to the interval, to a verdict with its reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.paired import (
    EQUIVALENT,
    FASTER,
    MIN_PAIRS,
    SLOWER,
    UNRESOLVED,
    Interval,
    Power,
    Trend,
    drift,
    judge,
    order_effect,
    outliers,
    paired_interval,
    power,
)
from analysis.pairing import Pair
from analysis.quantities import Quantity

UNTESTED = Trend(effect=math.nan, p=math.nan)


@dataclass(frozen=True, kw_only=True)
class PairValue:
    """One pair's two numbers."""

    label: str
    baseline_run: str
    candidate_run: str
    baseline: float
    candidate: float
    baseline_position: int | None
    candidate_position: int | None


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What the pairs say about one quantity. Ratios are candidate/baseline; NaN is a number that could not be had."""

    quantity: Quantity
    verdict: str
    reason: str
    """Why it is unresolved; empty otherwise."""
    values: tuple[PairValue, ...]
    ratio: float
    low: float
    high: float
    pair_sd: float
    asked: float
    """The margin that was asked for. Equivalence is claimed within this one or not at all."""
    floor: float
    """Largest relative difference that identical arms may show (A/A runs); 0 where there are none."""
    power: Power
    drift: Trend = UNTESTED
    order: Trend = UNTESTED
    drift_removed: float = 0.0
    """Relative effect that a linear drift would have had on the plain mean, and that was subtracted."""
    outlying: tuple[str, ...] = ()
    """Runs far from the others of their arm: shown, not dropped."""
    missing: tuple[str, ...] = ()
    """Runs without a usable number, and why."""

    @property
    def pairs(self) -> int:
        return len(self.values)

    @property
    def margin(self) -> float:
        """Below this no difference is called: the margin asked for, or the A/A noise floor where that is wider."""
        return max(self.asked, self.floor)

    @property
    def drowned(self) -> bool:
        """Whether identical arms differ by more than what was asked about."""
        return self.floor > self.asked

    @property
    def baseline_median(self) -> float:
        return float(np.median([value.baseline for value in self.values])) if self.values else math.nan

    @property
    def candidate_median(self) -> float:
        return float(np.median([value.candidate for value in self.values])) if self.values else math.nan


def measure(quantity: Quantity, pairs: Sequence[Pair], *, margin: float, floor: float = 0.0) -> Effect:
    """The effect on one quantity. Pairs in which a run has no positive finite number are left out, by name."""
    quantity = quantity.in_scope_of(run for pair in pairs for run in pair.runs)
    values, missing = _values(quantity, pairs)
    base = np.log([value.baseline for value in values])
    cand = np.log([value.candidate for value in values])
    first = [value.baseline_position for value in values]
    second = [value.candidate_position for value in values]
    ordered = bool(values) and None not in first and None not in second
    interval = (
        paired_interval(
            base,
            cand,
            np.array(first, float) if ordered else None,
            np.array(second, float) if ordered else None,
            resolution=_resolution(quantity, pairs),
        )
        if values
        else _nothing()
    )
    count = len(values)
    verdict, reason = _verdict(quantity, interval, values, margin, floor)
    places = (np.array(first, float) + np.array(second, float)) / 2 if ordered else None
    return Effect(
        quantity=quantity,
        verdict=verdict,
        reason=reason,
        values=tuple(values),
        ratio=float(interval.ratio),
        low=float(interval.low),
        high=float(interval.high),
        pair_sd=float(interval.pair_sd),
        asked=margin,
        floor=floor,
        power=power(interval, count, effect=0.01),
        drift=drift((base + cand) / 2, places) if places is not None else UNTESTED,
        order=order_effect(cand - base, np.greater(second, first)) if ordered else UNTESTED,
        drift_removed=float(np.expm1(interval.drift_removed)),
        outlying=_outlying(values, base, cand),
        missing=tuple(missing),
    )


def _values(quantity: Quantity, pairs: Sequence[Pair]) -> tuple[list[PairValue], list[str]]:
    values, missing = [], []
    for pair in pairs:
        numbers = [run.number(*quantity.keys) for run in pair.runs]
        bad = [
            f"{run.run_id}: {_why_unusable(number)}"
            for run, number in zip(pair.runs, numbers, strict=True)
            if _why_unusable(number)
        ]
        for key in quantity.equal:
            states = [pair.baseline.fact(key), pair.candidate.fact(key)]
            if states[0] != states[1]:
                bad.append(f"{pair.label}: {key} is {states[0]} against {states[1]}")
        missing += bad
        if not bad:
            values.append(
                PairValue(
                    label=pair.label,
                    baseline_run=pair.baseline.run_id,
                    candidate_run=pair.candidate.run_id,
                    baseline=float(numbers[0] or 0),
                    candidate=float(numbers[1] or 0),
                    baseline_position=pair.baseline_position,
                    candidate_position=pair.candidate_position,
                )
            )
    return values, missing


def _why_unusable(number: float | None) -> str:
    if number is None:
        return "not recorded"
    return "" if math.isfinite(number) and number > 0 else f"is {number:g}"


def _resolution(quantity: Quantity, pairs: Sequence[Pair]) -> float:
    """Rounding of a number that comes from torchtitan's ``tps``, which is printed without decimals."""
    if quantity.name not in ("throughput", "step_time"):
        return 0.0
    rates = [run.number("steady.tps_per_rank") for pair in pairs for run in pair.runs]
    usable = [rate for rate in rates if rate is not None and math.isfinite(rate) and rate > 0]
    return 0.5 / min(usable) if usable else 0.0


def _nothing() -> Interval:
    unknown = np.array(math.nan)
    return Interval(estimate=unknown, half_width=unknown, df=unknown, pair_sd=unknown, drift_removed=np.array(0.0))


def _verdict(
    quantity: Quantity, interval: Interval, values: Sequence[PairValue], margin: float, floor: float
) -> tuple[str, str]:
    count = len(values)
    if count < MIN_PAIRS:
        return UNRESOLVED, f"{count} usable pair{'' if count == 1 else 's'} of runs, at least {MIN_PAIRS} are needed"
    arms = ({value.baseline for value in values}, {value.candidate for value in values})
    if quantity.measured and all(len(arm) == 1 for arm in arms):
        return UNRESOLVED, "every run of an arm has exactly the same value: these are not independent measurements"
    upright = interval if quantity.more_is_better else _mirrored(interval)
    verdict = str(judge(upright, pairs=count, margin=margin, floor=floor))
    if verdict == UNRESOLVED:
        return UNRESOLVED, _why_unresolved(interval, margin, floor)
    return {FASTER: quantity.better, SLOWER: quantity.worse, EQUIVALENT: EQUIVALENT}[verdict], ""


def _mirrored(interval: Interval) -> Interval:
    """The same effect for a quantity of which less is better: baseline/candidate."""
    return Interval(
        estimate=-interval.estimate,
        half_width=interval.half_width,
        df=interval.df,
        pair_sd=interval.pair_sd,
        drift_removed=-interval.drift_removed,
    )


def _why_unresolved(interval: Interval, margin: float, floor: float) -> str:
    low, high = float(interval.low), float(interval.high)
    inside_floor = abs(float(interval.ratio) - 1) <= floor
    if floor > margin and inside_floor:
        return (
            f"A/A runs of this machine differ by up to {100 * floor:.2g} %, so nothing below that can be told, and "
            f"{100 * margin:.2g} % was asked"
        )
    if inside_floor and (low > 1 or high < 1):
        return f"the effect is not above what identical arms show here ({100 * floor:.2g} %, A/A)"
    return (
        f"the interval holds zero and reaches beyond {100 * margin:.2g} %, so neither a difference nor equality is "
        "shown"
    )


def _outlying(values: Sequence[PairValue], base: np.ndarray, cand: np.ndarray) -> tuple[str, ...]:
    """Runs whose pair differs far from the other pairs, and of that pair the run that lies farther from its arm."""
    found = []
    for index in outliers(cand - base):
        far = [abs(arm[index] - np.median(arm)) for arm in (base, cand)]
        found.append(values[index].baseline_run if far[0] > far[1] else values[index].candidate_run)
    return tuple(found)


def noise_floor(effect: Effect) -> float:
    """Largest relative difference that an A/A comparison cannot exclude; 0 where it has too few pairs to say."""
    if effect.pairs < MIN_PAIRS or not math.isfinite(effect.low) or not math.isfinite(effect.high):
        return 0.0
    return max(abs(effect.low - 1), abs(effect.high - 1))
