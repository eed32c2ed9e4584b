"""The result does not depend on how the bytes arrive: every split, byte by byte, any pieces, over-long lines."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.logs import LogReader, Row
from harness.logs.lines import LIMIT, RECORD

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.log"))
RECORD_LINE = (
    b"step:  %d  loss:  8.20412  grad_norm:  1.4599  memory:  0.31GiB(0.33%%)  tps: 1,311  tflops: 0.09  mfu: 0.01%%"
)


def read(*pieces: bytes) -> list[dict[str, Any]]:
    """As JSON, since nan is not equal to itself."""
    reader = LogReader()
    records = [record for piece in pieces for record in reader.feed(piece)] + reader.close()
    return [record.to_json() for record in records]


@pytest.mark.parametrize("name", ["damage_wrapped", "damage_returns", "ranks_pipeline", "segments_resume", "utf16"])
def test_split_at_every_byte(name: str) -> None:
    data = (GOLDEN / f"{name}.log").read_bytes()
    whole = read(data)
    assert whole
    for at in range(len(data) + 1):
        assert read(data[:at], data[at:]) == whole, at


@pytest.mark.parametrize("name", NAMES)
def test_byte_by_byte(name: str) -> None:
    data = (GOLDEN / f"{name}.log").read_bytes()
    assert read(*(data[at : at + 1] for at in range(len(data)))) == read(data)


ALL = b"".join((GOLDEN / f"{name}.log").read_bytes() for name in NAMES if name not in ("utf16", "damage_bytes"))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, len(ALL)), max_size=40))
def test_any_pieces(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(ALL)]
    assert read(*(ALL[a:b] for a, b in pairwise(edges))) == read(ALL)


def test_a_row_goes_out_with_the_end_of_its_line() -> None:
    reader = LogReader()
    assert reader.feed(RECORD_LINE % 1) == []
    (row,) = reader.feed(b"\n")
    assert isinstance(row, Row)
    assert row.step == 1


@pytest.mark.parametrize(
    "before", [0, 100, LIMIT - RECORD - 200, LIMIT - RECORD, LIMIT - 600, LIMIT - 100, LIMIT - 3, LIMIT]
)
def test_no_record_is_lost_in_an_overlong_line(before: int) -> None:
    data = (
        b"x" * before
        + b" "
        + (RECORD_LINE % 1)
        + b" "
        + b"y" * LIMIT
        + b" "
        + (RECORD_LINE % 2)
        + b"\n"
        + (RECORD_LINE % 3)
    )
    whole = read(data)
    assert [(record["step"], record["line"]) for record in whole if "step" in record] == [(1, 1), (2, 1), (3, 2)]
    for size in (1, 7, 1000, 60_000):
        pieces = (
            [data[at : at + size] for at in range(0, len(data), size)]
            if size > 1
            else [data[:-200], *_bytes(data[-200:])]
        )
        assert read(*pieces) == whole


def _bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def test_line_numbers_count_every_line_feed_and_nothing_else() -> None:
    data = b"\n" * 70_000 + b"a\rb\r\n" + RECORD_LINE % 1 + b"\n"
    (row,) = read(data)
    assert row["line"] == 70_002
