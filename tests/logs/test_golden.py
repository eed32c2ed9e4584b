"""Golden logs: one per line shape and peculiarity, written for this project, with everything the reader must find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.logs import KINDS, Event, LogReader, Rejected, Row
from harness.logs.announce import SHAPES

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.log"))


def expected(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def found(data: bytes, options: dict[str, Any]) -> dict[str, list[Any]]:
    reader = LogReader(**options)
    records = [*reader.feed(data), *reader.close()]
    return {
        "rows": [record.to_json() for record in records if isinstance(record, Row)],
        "events": [record.to_json() for record in records if isinstance(record, Event)],
        "rejected": [[record.line, record.reason] for record in records if isinstance(record, Rejected)],
    }


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str) -> None:
    want = expected(name)
    got = found((GOLDEN / f"{name}.log").read_bytes(), want.get("options", {}))
    for what in ("rows", "events", "rejected"):
        assert got[what] == want[what], f"{name}: {want['about']}"


def test_there_is_a_golden_log_for_every_shape_of_the_table() -> None:
    lines = b"\n".join((GOLDEN / f"{name}.log").read_bytes() for name in NAMES).decode("utf-8", "replace")
    kinds = {event["kind"] for name in NAMES for event in expected(name)["events"]}
    silent = [
        shape
        for shape in SHAPES
        if shape.kind != "child_rank" and (shape.needle not in lines or shape.kind not in kinds)
    ]
    assert not silent


def test_every_kind_of_event_is_documented_and_none_in_vain() -> None:
    own = {"new_segment", "rank_disagreement", "final_metrics"}
    assert {shape.kind for shape in SHAPES} - {"child_rank"} | own == set(KINDS)


def test_a_golden_log_of_every_historic_shape() -> None:
    assert [name for name in NAMES if name[0] == "s" and name[1:].isdigit()] == [f"s{n:02d}" for n in range(13)]
