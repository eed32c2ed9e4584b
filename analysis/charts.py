"""The plots of a report. Each returns SVG, or an empty string where there is nothing to show."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from analysis import numbers
from analysis.comparison import Comparison
from analysis.effects import Effect, PairValue
from analysis.paired import UNRESOLVED
from analysis.runs import Run
from analysis.svg import Axis, Plot

BASELINE, CANDIDATE = "baseline", "candidate"
MAX_LINES = 12
"""Runs of an arm whose curves are drawn; more hide each other."""
WIDE, HALF = 1040, 512
STEP = "training step (number)"
RUN_ORDER = "run, numbered in the order in which they ran"


def forest(effects: Sequence[Effect]) -> str:
    """Change of each quantity with its interval; the margin shaded."""
    shown = [effect for effect in effects if math.isfinite(effect.ratio)]
    if not shown:
        return ""
    changes = [100 * (value - 1) for effect in shown for value in (effect.ratio, effect.low, effect.high)]
    margin = 100 * max(effect.asked for effect in shown)
    # One hopeless interval must not squeeze the others: beyond five times the typical width it becomes an arrow.
    widths = sorted(100 * (effect.high - effect.low) for effect in shown if math.isfinite(effect.low))
    typical = widths[len(widths) // 2] if widths else margin
    reach = max(5 * typical, 2.5 * margin, 1.3 * max(abs(100 * (effect.ratio - 1)) for effect in shown))
    kept = [value for value in changes if math.isfinite(value) and abs(value) <= reach] + [-1.4 * margin, 1.4 * margin]
    rows = len(shown)
    names = tuple((rows - index, effect.quantity.label) for index, effect in enumerate(shown))
    x = Axis.around("change of the candidate against the baseline (%)", kept)
    y = Axis(label="", low=0.4, high=rows + 0.6, names=names)
    plot = Plot("Changes with 95 % intervals", x, y, width=WIDE, height=34 * rows + 58, right=110)
    plot.band("margin", x=(-margin, margin))
    plot.rule("zero", x=0)
    for row, effect in zip((row for row, _ in names), shown, strict=True):
        if effect.floor:
            floor = 100 * effect.floor
            plot.band("floor", x=(-floor, floor), y=(row - 0.32, row + 0.32))
        kind = "open" if effect.verdict == UNRESOLVED else "decided"
        if math.isfinite(effect.low):
            plot.whisker(100 * (effect.low - 1), 100 * (effect.high - 1), row, kind)
        text = f"{effect.quantity.label}: {numbers.change(effect.ratio)} ({numbers.between(effect)})"
        value = min(max(100 * (effect.ratio - 1), x.low), x.high)
        plot.point(value, row, kind, text, radius=4.5)
        plot.label(plot.width - plot.right + 10, row, effect.verdict, kind)
    return plot.render()


def paired_runs(effect: Effect) -> str:
    """One number per run in the order in which the runs ran, the two of a pair joined."""
    values = effect.values
    if not values:
        return ""
    places = _places(values)
    unit = f" ({effect.quantity.unit})" if effect.quantity.unit else ""
    ordered = values[0].baseline_position is not None
    x = Axis.around(
        RUN_ORDER if ordered else "pair, numbered (the order of the runs is not known)",
        [place for both in places for place in both],
        integers=True,
        pad=0.03,
    )
    y = Axis.around(
        f"{effect.quantity.label.lower()}{unit}",
        [number for value in values for number in (value.baseline, value.candidate)],
    )
    plot = Plot(f"{effect.quantity.label} of each run", x, y, width=WIDE, height=280)
    for (first, second), value in zip(places, values, strict=True):
        plot.line([(first, value.baseline), (second, value.candidate)], "join")
    for (first, second), value in zip(places, values, strict=True):
        for place, number, run, arm in (
            (first, value.baseline, value.baseline_run, BASELINE),
            (second, value.candidate, value.candidate_run, CANDIDATE),
        ):
            outlying = " (far from the others)" if run in effect.outlying else ""
            text = f"{run}, {value.label}: {numbers.quantity_text(number, effect.quantity.unit)}{outlying}"
            plot.point(place, number, f"{arm}{' outlying' if outlying else ''}", text, radius=4)
    return plot.render()


def _places(values: Sequence[PairValue]) -> list[tuple[float, float]]:
    if values[0].baseline_position is None:
        return [(index + 0.9, index + 1.1) for index in range(len(values))]
    return [(float(value.baseline_position or 0) + 1, float(value.candidate_position or 0) + 1) for value in values]


def step_times(comparison: Comparison) -> tuple[str, str]:
    """Seconds of every step of a selection of runs: all of them, and the steady part alone at its own scale. Warm-up is
    shaded, recompiles are marked."""
    series = [(arm, run, points) for arm, run in drawn_runs(comparison) if (points := _step_seconds(run))]
    if not series:
        return "", ""
    seconds = [value for _, _, points in series for _, value in points if math.isfinite(value)]
    if not seconds:
        return "", ""
    warmup = max(run.warmup_steps for _, run, _ in series)
    log = max(seconds) > 3 * float(np.median(seconds))
    unit = "s, logarithmic" if log else "s"
    whole = _steps_plot("Time of each step", series, Axis.around(f"time of a step ({unit})", seconds, log=log), 1)
    steady = [
        value
        for _, run, points in series
        for step, value in points
        if step > warmup and math.isfinite(value) and step not in run.recompile_steps
    ]
    if not steady:
        return whole, ""
    y = Axis.around("time of a steady step (s)", _without_far_ends(steady))
    return whole, _steps_plot("Time of each steady step", series, y, warmup + 1)


Series = list[tuple[str, Run, list[tuple[int, float]]]]


def _steps_plot(title: str, series: Series, y: Axis, first: int) -> str:
    steps = [step for _, _, points in series for step, _ in points if step >= first]
    plot = Plot(title, Axis.around(STEP, steps, integers=True, pad=0.02), y, width=HALF, height=260)
    warmup = max(run.warmup_steps for _, run, _ in series)
    if warmup >= first:
        plot.band("warmup", x=(plot.x.low, warmup + 0.5))
    for arm, run, points in series:
        inside = [(step, value if y.low <= value <= y.high else math.nan) for step, value in points if step >= first]
        plot.line(inside, f"{arm} thin", run.run_id)
    for arm, run, points in series:
        at = dict(points)
        for step in run.recompile_steps:
            if step in at and step >= first and math.isfinite(at[step]):
                text = f"{run.run_id}: recompile at step {step}, {at[step]:.3g} s"
                plot.triangle(step, min(at[step], y.high), arm, text)
    return plot.render()


def _without_far_ends(values: Sequence[float]) -> list[float]:
    """Values within ten quartile ranges of the quartiles, so that one odd step does not flatten the rest."""
    low, high = np.quantile(values, (0.25, 0.75))
    reach = 10 * max(float(high - low), 1e-6 * abs(float(high)))
    return [value for value in values if low - reach <= value <= high + reach]


def _step_seconds(run: Run) -> list[tuple[int, float]]:
    """Seconds per step from the logged tokens per second; empty where the tokens of a step are not known."""
    median, rate = run.number("steady.step_s_median"), run.number("steady.tps_per_rank")
    if not median or not rate:
        return []
    tokens = median * rate
    return [(step, tokens / value if value > 0 else math.nan) for step, value in run.series["tps"]]


def overlay(comparison: Comparison, series: str, label: str) -> str:
    """The curves of both arms on top of each other."""
    lines = [(arm, run, points) for arm, run in drawn_runs(comparison) if (points := run.series[series])]
    if not lines:
        return ""
    x = Axis.around(STEP, [step for _, _, points in lines for step, _ in points], integers=True, pad=0.02)
    y = Axis.around(label, [value for _, _, points in lines for _, value in points])
    plot = Plot(f"{label} of both arms", x, y, width=HALF, height=270)
    # The baseline is drawn broad and below, so that it stays visible where the candidate covers it.
    for arm, run, points in lines:
        plot.line(points, f"{arm} over", run.run_id)
    return plot.render()


def difference(comparison: Comparison, series: str, what: str, margin: float) -> str:
    """Candidate against baseline in percent, step by step, for each pair and on average; the margin shaded where it is
    in sight."""
    lines = []
    for pair in drawn_pairs(comparison):
        base, cand = (dict(run.series[series]) for run in pair.runs)
        points = {step: _relative(base[step], cand[step]) for step in sorted(base.keys() & cand.keys())}
        if points:
            lines.append((pair, points))
    values = [value for _, points in lines for value in points.values() if math.isfinite(value)]
    if not values:
        return ""
    x = Axis.around(STEP, [step for _, points in lines for step in points], integers=True, pad=0.02)
    y = Axis.around(f"difference in {what} (%)", [*values, 0.0])
    plot = Plot(f"Difference in {what}", x, y, width=HALF, height=270)
    plot.band("margin", y=(-100 * margin, 100 * margin))
    plot.rule("zero", y=0)
    for pair, points in lines:
        plot.line(
            list(points.items()), "candidate faint", f"{pair.label}: {pair.candidate.run_id} against its baseline"
        )
    shared = set.intersection(*(set(points) for _, points in lines))
    mean = [(step, float(np.mean([points[step] for _, points in lines]))) for step in sorted(shared)]
    plot.line(mean, "decided", "mean over pairs")
    return plot.render()


def _relative(base: float, cand: float) -> float:
    return 100 * (cand - base) / abs(base) if base and math.isfinite(base) and math.isfinite(cand) else math.nan


def memory(comparison: Comparison) -> str:
    """Peak memory of each run."""
    effect = comparison.effect("memory")
    return paired_runs(effect) if effect else ""


def drawn_pairs(comparison: Comparison) -> list:
    """All pairs, or evenly spaced ones where there are too many to draw."""
    pairs = list(comparison.pairs)
    if len(pairs) <= MAX_LINES:
        return pairs
    return [pairs[round(index)] for index in np.linspace(0, len(pairs) - 1, MAX_LINES)]


def drawn_runs(comparison: Comparison) -> list[tuple[str, Run]]:
    pairs = drawn_pairs(comparison)
    return [(BASELINE, pair.baseline) for pair in pairs] + [(CANDIDATE, pair.candidate) for pair in pairs]
