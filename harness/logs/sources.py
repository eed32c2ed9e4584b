"""Better sources beside a log: TensorBoard events and JSONL metrics hold at full precision what the console rounds.

A row takes their values only if they round to what the line says, column by column and the loss among them, so that
another run's files that happen to lie there change nothing. Where the line hides the loss (pipeline stages), the other
columns must agree, and the loss comes from the source.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from harness.logs.records import ROW_NUMBERS, Record, Row
from harness.logs.rows import METRICS, VALIDATION_METRICS, row_from_metrics

ROUNDING = {
    "loss": 5e-5, "grad_norm": 5e-5, "memory_gib": 5e-3, "memory_pct": 5e-3, "tps": 0.5, "tflops": 5e-3, "mfu": 5e-3,
}  # fmt: skip
"""Half a unit in the last place torchtitan prints."""
SLACK = 1e-6
"""Relative; TensorBoard keeps float32."""

EVENT_FILES = tuple(
    f"{folder}events.out.tfevents.*" for folder in ("", "*/", "tb/*/", "*/tb/*/", "tb/*/*/", "*/tb/*/*/")
)
"""torchtitan writes ``<dump_folder>/tb/<date-time>/[<tag>/]``."""
METRIC_FILES = ("metrics*.jsonl", "*/metrics*.jsonl")
MOST_FILES = 64
"""Not to search on where a log lies in a folder with hundreds of runs."""

Source = dict[tuple[str, int], Row]
"""Rows at full precision, by kind and step."""


def sources_beside(path: Path) -> list[Source]:
    """Every TensorBoard folder and JSONL metrics file in the log's folder, or where torchtitan puts them below it."""
    folder = path.absolute().parent
    metrics = chain.from_iterable(sorted(folder.glob(pattern)) for pattern in METRIC_FILES)
    events = chain.from_iterable(sorted(folder.glob(pattern)) for pattern in EVENT_FILES)
    found = [metrics_source(file) for file in islice(metrics, MOST_FILES)]
    folders = dict.fromkeys(file.parent for file in islice(events, MOST_FILES))
    found += [source for each in folders if (source := tensorboard_source(each)) is not None]
    return [source for source in found if source]


def metrics_source(path: Path) -> Source:
    """The rows in a JSONL metrics file; lines that are not such records are passed over."""
    source: Source = {}
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                record = json.loads(line)
            except ValueError:
                continue
            row = row_from_metrics(record, number) if isinstance(record, dict) else None
            if row is not None:
                source[row.kind, row.step] = row
    return source


def tensorboard_source(folder: Path) -> Source | None:
    """The rows in a folder of TensorBoard events; ``None`` where tensorboard is not installed."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        return None
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})  # 0: keep all, do not sample
    events.Reload()
    known = set(events.Tags()["scalars"])
    source: Source = {}
    for kind, names in (("train", METRICS), ("validate", VALIDATION_METRICS)):
        for column, tags in names.items():
            for tag in tags:
                for point in events.Scalars(tag) if tag in known else ():
                    row = source.setdefault((kind, point.step), Row(kind, 0, point.step, source="tensorboard"))
                    setattr(row, column, point.value)
    return {key: row for key, row in source.items() if row.loss is not None}


def refine(records: Iterable[Record], sources: list[Source]) -> Iterator[Record]:
    """``records`` with the numbers of its rows at full precision, where a source has them."""
    for record in records:
        if isinstance(record, Row):
            for source in sources:
                better = source.get((record.kind, record.step))
                if better is not None and _take(record, better):
                    break
        yield record


def _take(row: Row, better: Row) -> bool:
    """Give ``row`` the values of ``better``, if they are the same rounded."""
    columns = [name for name in ROW_NUMBERS if getattr(row, name) is not None and getattr(better, name) is not None]
    exact = [name for name in columns if _rounds_to(getattr(better, name), getattr(row, name), ROUNDING[name])]
    if row.loss is not None:
        agree = "loss" in exact and ("grad_norm" in exact or "grad_norm" not in columns)
    else:
        agree = "loss_hidden" in row.flags and "grad_norm" in exact and len(exact) == len(columns)
        exact = [*exact, "loss"]
    if not agree:
        return False
    for name in exact:
        setattr(row, name, getattr(better, name))
    if row.loss is not None:
        row.flags = tuple(flag for flag in row.flags if flag != "loss_hidden")
    row.source = better.source
    return True


def _rounds_to(exact: float, printed: float, half: float) -> bool:
    if exact == printed or (math.isnan(exact) and math.isnan(printed)):
        return True
    return abs(exact - printed) <= half + SLACK * abs(printed)
