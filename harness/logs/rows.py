"""From a reading or a metrics record to a ``Row``: placeholders become null, oddities get a flag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.logs.records import Row
from harness.logs.steps import Reading

FLAGS = {
    "loss_hidden": "a negative loss, the sentinel of a rank that does not hold the last pipeline stage, became null",
    "memory_placeholder": "memory <= 0, printed where the device keeps no statistics, became null",
    "mfu_na": "the line says mfu: N/A (something is quantised)",
    "mfu_over_100": "the MFU is kept as printed but cannot be true",
    "cut": "the line ended inside a value, which became null, or before the columns of the lines around it",
    "wrapped": "the record was put together from two or more lines",
}
"""Every flag a row can carry."""

METRICS = {
    "loss": ("loss_metrics/global_avg_loss", "loss"),
    "grad_norm": ("grad_norm",),
    "memory_gib": ("memory/max_reserved(GiB)",),
    "memory_pct": ("memory/max_reserved(%)",),
    "tps": ("throughput(tps)", "throughput(wps)", "wps"),
    "tflops": ("tflops",),
    "mfu": ("mfu(%)",),
}
"""Row columns and the names torchtitan gives them in TensorBoard, W&B and JSONL metrics."""
VALIDATION_METRICS = {
    "loss": ("validation_metrics/loss",),
    "memory_gib": ("validation_metrics/memory/max_reserved(GiB)",),
    "memory_pct": ("validation_metrics/memory/max_reserved(%)",),
    "tps": ("validation_metrics/throughput(tps)",),
}


def row_from_reading(reading: Reading, rank: int | None, time: str | None, line: int) -> Row:
    """The row of a record as printed. ``segment`` is set by the merger."""
    row = Row(reading.kind, 0, reading.step, rank=rank, time=time, line=line, extra=reading.extra or None)
    for column, value in reading.values.items():
        setattr(row, column, value)
    if reading.flags:
        row.flags = tuple(dict.fromkeys(reading.flags))
    settle(row)
    return row


def row_from_tokens(kind: str, tokens: Sequence[bytes | None], rank: int | None, time: str | None, line: int) -> Row:
    """The row of an unharmed line of torchtitan's own: the groups of ``steps.CANONICAL_LINE``."""
    step, loss, norm, gib, percent, tps, tflops, mfu, no_mfu = tokens
    row = Row(
        kind,
        0,
        int(step),  # type: ignore[arg-type]
        float(loss),  # type: ignore[arg-type]
        None if norm is None else float(norm),
        None if gib is None else float(gib),
        None if percent is None else float(percent),
        None if tps is None else int(tps.replace(b",", b"")),
        None if tflops is None else float(tflops.replace(b",", b"")),
        None if mfu is None else float(mfu),
        rank,
        time,
        line,
    )
    if no_mfu is not None:
        row.flags = ("mfu_na",)
    settle(row)
    return row


def settle(row: Row) -> None:
    """Turn the placeholders of ``row`` into null, and flag them and what is out of reason."""
    if row.loss is not None and row.loss < 0:
        row.loss = None
        row.flags = (*row.flags, "loss_hidden")
    if row.memory_gib is not None and not row.memory_gib > 0:
        row.memory_gib = row.memory_pct = None
        row.flags = (*row.flags, "memory_placeholder")
    if row.mfu is not None and row.mfu > 100:
        row.flags = (*row.flags, "mfu_over_100")


def row_from_metrics(record: dict[str, Any], line: int, source: str = "metrics_jsonl") -> Row | None:
    """The row in one record of JSONL metrics (flat, or with ``extras``), or ``None`` if it is not one."""
    extras = record.get("extras")
    values = {**record, **extras} if isinstance(extras, dict) else record
    step = values.get("step", values.get("_step"))
    if not isinstance(step, int) or isinstance(step, bool):
        return None
    for kind, names in (("train", METRICS), ("validate", VALIDATION_METRICS)):
        numbers = {column: _first(values, keys) for column, keys in names.items()}
        if numbers["loss"] is not None:
            row = Row(kind, 0, step, **numbers, line=line, source=source)
            settle(row)
            return row
    return None


def _first(values: dict[str, Any], keys: tuple[str, ...]) -> float | None:
    """The first number under one of ``keys``; JSON writers spell inf and nan as strings or as bare words."""
    for key in keys:
        value = values.get(key)
        if isinstance(value, str) and value.lower().lstrip("+-") in (
            "inf",
            "infinity",
            "nan",
        ):
            return float(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    return None
