"""A comparison as tables: pandas frames, written as CSV (to read) and parquet (to compute with)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import text
from analysis.comparison import Comparison

if TYPE_CHECKING:
    from pandas import DataFrame


def frames(comparison: Comparison) -> dict[str, DataFrame]:
    """Tables by name: ``effects`` (one row per quantity), ``pairs`` (per quantity and pair), ``curves`` (per pair and
    step) and ``left_out`` (per run)."""
    from pandas import DataFrame

    effects = []
    for effect in comparison.effects:
        data = text.effect_data(effect)
        flat = {key: value for key, value in data.items() if not isinstance(value, (dict, tuple))}
        effects.append(
            {"quantity": effect.quantity.name, **flat, "drift": effect.drift.effect, "drift_p": effect.drift.p}
        )
    pairs = [
        {
            "quantity": effect.quantity.name,
            "pair": value.label,
            "baseline_run": value.baseline_run,
            "candidate_run": value.candidate_run,
            "baseline_position": value.baseline_position,
            "candidate_position": value.candidate_position,
            "baseline": value.baseline,
            "candidate": value.candidate,
            "ratio": value.candidate / value.baseline,
        }
        for effect in comparison.effects
        for value in effect.values
    ]
    left_out = [{"run": item.run.run_id, "arm": item.arm, "reason": item.reason} for item in comparison.left_out]
    return {
        "effects": DataFrame(effects),
        "pairs": DataFrame(pairs),
        "curves": DataFrame(list(_curve_rows(comparison))),
        "left_out": DataFrame(left_out, columns=["run", "arm", "reason"]),
    }


def _curve_rows(comparison: Comparison) -> Iterator[dict[str, object]]:
    for pair in comparison.pairs:
        both = [{name: dict(run.series[name]) for name in ("loss", "grad_norm")} for run in pair.runs]
        steps = sorted({step for one in both for points in one.values() for step in points})
        for step in steps:
            row: dict[str, object] = {"pair": pair.label, "step": step}
            for name in ("loss", "grad_norm"):
                row[f"{name}_baseline"] = both[0][name].get(step)
                row[f"{name}_candidate"] = both[1][name].get(step)
            yield row


def write_tables(comparison: Comparison, folder: Path) -> None:
    """Write every table as ``<name>.csv`` and ``<name>.parquet`` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in frames(comparison).items():
        frame.to_csv(folder / f"{name}.csv", index=False)
        frame.to_parquet(folder / f"{name}.parquet", index=False)
