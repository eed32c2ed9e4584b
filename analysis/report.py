"""A comparison as one HTML page that needs nothing else: no network, no script; everything that came from logs or
configurations is escaped by the template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis import charts, numbers, text, wording
from analysis.comparison import Comparison
from analysis.curves import DIFFERENT, CurveVerdict
from analysis.gate import NOT_COMPARED, as_text
from analysis.paired import EQUIVALENT, UNRESOLVED
from analysis.quantities import HEADLINE
from analysis.runs import Run

TEMPLATES = Path(__file__).resolve().parent / "templates"
CURVES = (
    ("loss", "Loss", "loss", "loss (nats per token)"),
    ("grad_norm", "Gradient norm", "gradient norm", "gradient norm (L2, dimensionless)"),
)


def to_html(comparison: Comparison) -> str:
    """The page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html").render(**context(comparison))


def context(comparison: Comparison) -> dict[str, Any]:
    """What the template shows; plots are marked as safe, since ``analysis.svg`` escapes, all else is escaped there."""
    baseline, candidate = wording.arm_names(comparison)
    return {
        "title": wording.title(comparison),
        "subtitle": _subtitle(comparison),
        "rehearsal": wording.REHEARSAL if comparison.rehearsal else "",
        "headline": wording.verdict(comparison),
        "tone": _tone(comparison),
        "pills": _pills(comparison),
        "baseline": baseline,
        "candidate": candidate,
        "undeclared": comparison.gate.undeclared,
        "declared": comparison.gate.declared,
        "hint": comparison.gate.hint,
        "header": ("", baseline, candidate, *text.HEADER[3:]),
        "rows": [
            {"cells": cells, "tone": _effect_tone(effect.verdict, effect.quantity.better)}
            for cells, effect in zip(text.effect_rows(comparison), comparison.effects, strict=True)
        ],
        "margin": numbers.percent(comparison.request.margin),
        "floored": any(effect.floor for effect in comparison.effects),
        "design": wording.design(comparison),
        "checks": _checks(comparison),
        "left_out": [{"run": item.run.run_id, "arm": item.arm, "reason": item.reason} for item in comparison.left_out],
        "shared": _shared(comparison),
        "runs": [(pair.label, pair.baseline.run_id, pair.candidate.run_id) for pair in comparison.pairs],
        "notes": wording.notes(comparison) if comparison.comparable else [],
        "method": wording.METHOD,
        "request": comparison.request,
        "created": f"Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.",
        **_plots(comparison),
    }


def _plots(comparison: Comparison) -> dict[str, Any]:
    from markupsafe import Markup

    effect = comparison.effect(HEADLINE.name)
    drawn = len(charts.drawn_pairs(comparison))
    few = drawn < len(comparison.pairs)
    return {
        "forest": Markup(charts.forest(comparison.effects)),
        "throughput": Markup(charts.paired_runs(effect)) if effect else "",
        "step_times": [Markup(plot) for plot in charts.step_times(comparison) if plot] if comparison.comparable else [],
        "memory": Markup(charts.memory(comparison)),
        "shown": f"; {drawn} of {len(comparison.pairs)} pairs are drawn" if few else "",
        "curves": [
            {
                "label": label,
                "verdict": verdict.verdict,
                "tone": _curve_tone(verdict),
                "reason": verdict.reason,
                "detail": wording.curve_detail(verdict),
                "margin": numbers.percent(verdict.margin),
                "overlay": Markup(charts.overlay(comparison, series, axis)),
                "difference": Markup(charts.difference(comparison, series, what, verdict.margin)),
            }
            for series, label, what, axis in CURVES
            for verdict in [getattr(comparison, series)]
            if verdict is not None and (verdict.steps or series == "loss")
        ],
    }


def _subtitle(comparison: Comparison) -> str:
    runs = comparison.runs or [item.run for item in comparison.left_out]
    parts = [
        f"{name} {', '.join(sorted(values))}"
        for name, key in (("path", "path"), ("platform", "platform"), ("experiment", "experiment"))
        if (values := {as_text(run.setting(key)) for run in runs if run.setting(key) is not None})
    ]
    times = sorted(run.started for run in runs if run.started)
    if times:
        first, last = times[0][:16].replace("T", " "), times[-1][:16].replace("T", " ")
        parts.append(f"runs of {first}" + (f" to {last}" if last != first else "") + " UTC")
    return " · ".join(parts)


def _tone(comparison: Comparison) -> str:
    """Good where the candidate is faster or as fast and the training the same; bad where it is worse; else open."""
    loss = comparison.loss.verdict if comparison.loss else UNRESOLVED
    if not comparison.comparable or comparison.verdict == HEADLINE.worse or loss == DIFFERENT:
        return "bad"
    return "good" if comparison.verdict in (HEADLINE.better, EQUIVALENT) and loss == EQUIVALENT else ""


def _effect_tone(verdict: str, better: str) -> str:
    return {UNRESOLVED: "open", EQUIVALENT: "", better: "good"}.get(verdict, "bad")


def _curve_tone(verdict: CurveVerdict) -> str:
    return {EQUIVALENT: "good", DIFFERENT: "bad"}.get(verdict.verdict, "open")


def _pills(comparison: Comparison) -> list[tuple[str, str]]:
    if not comparison.comparable:
        return []
    pills = [("throughput", comparison.verdict)]
    for label, curve in text.curves(comparison):
        pills.append((label.lower(), curve.verdict))
    pills.append(("pairs of runs", str(len(comparison.pairs))))
    if comparison.left_out:
        pills.append(("left out", numbers.plural(len(comparison.left_out), "run")))
    return pills


def _checks(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Each check with how many runs of an arm passed it, the left-out runs included."""
    arms: dict[str, list[Run]] = {
        "baseline": [pair.baseline for pair in comparison.pairs],
        "candidate": [pair.candidate for pair in comparison.pairs],
    }
    for item in comparison.left_out:
        arms[item.arm].append(item.run)
    names = sorted({name for runs in arms.values() for run in runs for name in _check_names(run)})
    return [(name, *(_check_count(name, runs) for runs in arms.values())) for name in names]


def _check_names(run: Run) -> set[str]:
    return set(run.passed_checks) | {name for name, _ in run.failed_checks}


def _check_count(name: str, runs: Iterable[Run]) -> str:
    counts = Counter(
        "passed"
        if name in run.passed_checks
        else "failed"
        if any(name == failed for failed, _ in run.failed_checks)
        else "not made"
        for run in runs
    )
    return ", ".join(f"{counts[state]} {state}" for state in ("passed", "failed", "not made") if counts[state])


def _shared(comparison: Comparison) -> list[tuple[str, str]]:
    """Settings and circumstances that are equal in all pairs."""
    if not comparison.pairs:
        return []
    run = comparison.pairs[0].baseline
    differing = {item.key for item in (*comparison.gate.declared, *comparison.gate.undeclared)}
    return [
        (key, as_text(value))
        for key, value in sorted({**run.config, **run.circumstances}.items())
        if key not in differing and key.split(".")[0] not in NOT_COMPARED
    ]
