"""Real logs from the shared folder, where it exists: every row read by eye must be found, exactly."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from harness.logs import Row, read_files

FOLDER = Path(__file__).parents[3] / "shared" / "logs"
ROUNDED = {"npu-jsonl-02.log"}
"""The rows of this JSONL file were noted with fewer digits than it has, and without all columns."""
COLUMNS = ("loss", "grad_norm", "memory_gib", "tps", "tflops", "mfu")

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no folder of real logs at {FOLDER}")


def cases() -> dict[str, list[dict[str, Any]]]:
    path = FOLDER / "expected.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def matches(row: Row, want: dict[str, Any], *, rounded: bool) -> bool:
    if (row.kind, row.step) != (want["kind"], want["step"]):
        return False
    for column in COLUMNS:
        value, expected = getattr(row, column), want[column]
        if expected == "N/A" or (column == "loss" and isinstance(expected, float) and expected < 0):
            expected = None
        if isinstance(expected, str):
            expected = float(expected)
        if rounded and expected is None:
            continue
        if value is None or expected is None:
            if value is not expected:
                return False
        elif not math.isclose(value, expected, rel_tol=1e-3 if rounded else 0.0):
            return False
    return True


@pytest.mark.parametrize("name", sorted(cases()))
def test_every_row_read_by_eye_is_found(name: str) -> None:
    wanted = cases()[name]
    merged = [record for record in read_files(FOLDER / name) if isinstance(record, Row)]
    every = [record for record in read_files(FOLDER / name, every_rank=True) if isinstance(record, Row)]
    several = len({row.rank for row in every}) > 1
    for want in wanted:
        found = every if several else merged  # the eye picked rows of any rank
        assert any(matches(row, want, rounded=name in ROUNDED) for row in found), want
    if not wanted:
        assert not merged
        assert not every
    keys = [(row.segment, row.kind, row.step) for row in merged]
    assert len(keys) == len(set(keys)), "one row per step"


def test_all_real_logs_are_there() -> None:
    assert len(cases()) >= 95
    assert sum(len(rows) for rows in cases().values()) >= 186
