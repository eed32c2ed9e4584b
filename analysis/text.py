"""A comparison as text for a terminal, as Markdown for a pull request, and as plain data for machines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from analysis import numbers, wording
from analysis.comparison import Comparison
from analysis.curves import CurveVerdict
from analysis.effects import Effect
from harness.progress import printable
from harness.rundir import to_jsonable

HEADER = ("", "baseline", "candidate", "change", "95 % interval", "detectable", "verdict")
MAX_LISTED = 12


def to_text(comparison: Comparison) -> str:
    """For a terminal."""
    lines = [wording.headline(comparison), ""]
    if comparison.effects:
        baseline, candidate = wording.arm_names(comparison)
        rows = [("", baseline, candidate, *HEADER[3:]), *effect_rows(comparison)]
        lines += [*aligned(rows, numbers=range(1, 6)), ""]
    for label, curve in curves(comparison):
        lines.append(wording.curve_line(curve, label))
    lines += [text for text in (wording.design(comparison),) if text]
    for title, items in sections(comparison):
        lines += ["", f"{title}:", *(f"  {item}" for item in _listed(items))]
    return "\n".join(printable(line) for line in lines).rstrip() + "\n"


def to_markdown(comparison: Comparison) -> str:
    """For a pull request: the verdict, the table, the rest folded away."""
    lines = [f"**{escaped(wording.headline(comparison))}**", ""]
    if comparison.effects:
        baseline, candidate = wording.arm_names(comparison)
        header = ("", baseline, candidate, *HEADER[3:])
        lines += [_row(header), _row(["---"] + ["--:"] * 5 + ["---"])]
        lines += [_row(row) for row in effect_rows(comparison)]
        lines.append("")
    lines += [f"- {escaped(wording.curve_line(curve, label))}" for label, curve in curves(comparison)]
    lines += [f"- {escaped(text)}" for text in (wording.design(comparison),) if text]
    for title, items in sections(comparison):
        lines += ["", f"<details><summary>{title} ({len(items)})</summary>", ""]
        lines += [f"- {escaped(item)}" for item in _listed(items, limit=100)]
        lines += ["", "</details>"]
    lines += ["", "<details><summary>How this was measured</summary>", ""]
    lines += [f"- {line}" for line in wording.METHOD] + ["", "</details>"]
    return "\n".join(lines) + "\n"


def encodable(text: str) -> str:
    """``text`` without halves of surrogate pairs, which JSON and file names may hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def effect_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """One row per quantity, as text, in the order of ``HEADER``."""
    return [
        (
            effect.quantity.label,
            numbers.quantity_text(effect.baseline_median, effect.quantity.unit),
            numbers.quantity_text(effect.candidate_median, effect.quantity.unit),
            numbers.change(effect.ratio),
            numbers.between(effect),
            numbers.percent(effect.power.detectable),
            effect.verdict,
        )
        for effect in comparison.effects
    ]


def curves(comparison: Comparison) -> list[tuple[str, CurveVerdict]]:
    named = (("Loss", comparison.loss), ("Gradient norm", comparison.grad_norm))
    return [(label, curve) for label, curve in named if curve is not None]


def sections(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Titled lists that follow the numbers; empty ones left out."""
    parts = (
        ("Undeclared differences", [str(item) for item in comparison.gate.undeclared]),
        ("Compared", [f"{item.key}: {item.baseline} → {item.candidate}" for item in comparison.gate.declared]),
        ("Left out", [f"{item.run.run_id} ({item.arm}): {item.reason}" for item in comparison.left_out]),
        ("Notes", wording.notes(comparison)),
    )
    return [(title, items) for title, items in parts if items]


def to_data(comparison: Comparison) -> dict[str, Any]:
    """Everything, as plain JSON types; unknown numbers are the string ``nan``."""
    baseline, candidate = wording.arm_names(comparison)
    data = {
        "verdict": comparison.verdict,
        "headline": wording.headline(comparison),
        "comparable": comparison.comparable,
        "rehearsal": comparison.rehearsal,
        "baseline": {"name": baseline, "selector": str(comparison.request.baseline)},
        "candidate": {"name": candidate, "selector": str(comparison.request.candidate)},
        "pairs": [
            {"label": pair.label, "baseline": pair.baseline.run_id, "candidate": pair.candidate.run_id}
            for pair in comparison.pairs
        ],
        "undeclared_differences": [_difference(item) for item in comparison.gate.undeclared],
        "declared_differences": [_difference(item) for item in comparison.gate.declared],
        "left_out": [{"run": item.run.run_id, "arm": item.arm, "reason": item.reason} for item in comparison.left_out],
        "quantities": {effect.quantity.name: effect_data(effect) for effect in comparison.effects},
        "loss": comparison.loss,
        "grad_norm": comparison.grad_norm,
        "noise": comparison.noise,
        "notes": wording.notes(comparison),
    }
    return to_jsonable(data)


def effect_data(effect: Effect) -> dict[str, Any]:
    """One quantity as plain data."""
    return {
        "verdict": effect.verdict,
        "reason": effect.reason,
        "unit": effect.quantity.unit,
        "pairs": effect.pairs,
        "ratio": effect.ratio,
        "low": effect.low,
        "high": effect.high,
        "baseline_median": effect.baseline_median,
        "candidate_median": effect.candidate_median,
        "margin": effect.margin,
        "asked_margin": effect.asked,
        "noise_floor": effect.floor,
        "detectable": effect.power.detectable,
        "pairs_needed_for_1_percent": effect.power.pairs_needed,
        "pair_sd": effect.pair_sd,
        "drift": {"effect": effect.drift.effect, "p": effect.drift.p, "removed": effect.drift_removed},
        "order_effect": {"effect": effect.order.effect, "p": effect.order.p},
        "outlying": effect.outlying,
        "missing": effect.missing,
        "values": effect.values,
    }


def _difference(item: Any) -> dict[str, str]:
    return {"key": item.key, "baseline": item.baseline, "candidate": item.candidate}


def _listed(items: Sequence[str], limit: int = MAX_LISTED) -> list[str]:
    if len(items) <= limit:
        return list(items)
    return [*items[:limit], f"... and {len(items) - limit} more"]


def aligned(rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> list[str]:
    """Rows as lines with columns under each other; the columns whose indices are in ``numbers`` to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(widths[column]) if column in numbers else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"


def escaped(text: str) -> str:
    """Text that cannot break out of a Markdown table cell, nor be taken for HTML."""
    for char, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("`", "'"), ("\n", " ")):
        text = text.replace(char, escaped)
    return text
