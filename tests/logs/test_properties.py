"""Nothing raises, and nothing is in a row that is not in the text."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.logs import LogReader, Rejected, Row
from harness.logs.records import ROW_NUMBERS
from harness.logs.steps import number
from harness.logs.text import clean

GOLDEN = Path(__file__).parents[1] / "golden"
PREFIX = b"[rank0]:[titan] 2026-03-04 05:06:07,008 - root - INFO - "
NUMBER = re.compile(rb"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?\.?\d*(?:[eE][-+]?\d+)?|[-+]?(?i:inf(?:inity)?|nan)")


def rows(data: bytes) -> list[Row]:
    reader = LogReader(every_rank=True)
    return [record for record in [*reader.feed(data), *reader.close()] if isinstance(record, Row)]


def numbers_in(text: bytes) -> set[float]:
    found = set()
    for token in NUMBER.findall(text):
        try:
            found.add(float(number(token)))
        except ValueError:
            continue
    return found


def assert_textual(data: bytes) -> None:
    """Every number of every row stands in the text, as a whole, if need be over the end of a line."""
    text = clean(data)
    there = numbers_in(text) | numbers_in(re.sub(rb"[\r\n]", b"", text))
    for row in rows(data):
        values = [getattr(row, name) for name in ROW_NUMBERS] + [row.step]
        for value in values:
            if value is not None and not math.isnan(value):
                assert float(value) in there, (value, row)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400))
def test_arbitrary_bytes(data: bytes) -> None:
    reader = LogReader()
    reader.feed(data)
    reader.close()
    assert_textual(data)


FRAGMENTS = [
    b"step:", b" 1", b"  10", b"  loss:", b" 8.20412", b" 12.2454", b"nan", b"  grad_norm:", b"  1.4599", b"  memory:",
    b" 0.31GiB(0.33%)", b" 0.31GiB", b"  tps:", b" 1,311", b" 12", b",", b".", b"-", b"  tflops:", b" 0.09", b"  mfu:",
    b" 0.01%", b" N/A", b"\n", b"\r\n", b"\r", b"\x1b[31m", b"\x1b[m", b"[36m", b"\0", PREFIX, b"[rank1]:",
    b"final ", b"...", b"  ", b"{'loss': 1.5}", b'"', b"|", b"step=2 global_avg_loss=8.5 ",
    b"Step 1/20 | Loss: 8", b"validate ",
    b"Training starts at step 1", b"Traceback (most recent call last):", b"RuntimeError: x", b"current loss:", b"\xff",
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40).map(b"".join))
def test_pieces_of_step_lines_in_any_order(data: bytes) -> None:
    assert_textual(data)


MIXED = b"".join(path.read_bytes() for path in sorted(GOLDEN.glob("[drsn]*.log")) if path.stem != "damage_bytes")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_logs_with_bytes_lost_changed_and_doubled(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(MIXED) - 2000))
    text = bytearray(MIXED[start : start + 2000])
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, len(text) - 1))
        what = data.draw(st.sampled_from(["lose", "change", "double"]))
        if what == "lose":
            del text[at : at + data.draw(st.integers(1, 60))]
        elif what == "change":
            text[at] = data.draw(st.integers(0, 255))
        else:
            text[at:at] = text[at : at + data.draw(st.integers(1, 60))]
        if not text:
            break
    assert_textual(bytes(text))


MEMORY = b"memory:  9.35GiB(9.84%)"
S11 = b"step:  3  loss: 10.84241  grad_norm: 12.4599  " + MEMORY + b"  tps: 11,024  tflops: 59.25  mfu: "
WHOLE = {
    "S5": b"step:  3  loss: 10.8424  " + MEMORY + b"  wps: 11,024",
    "S5 coloured": b"\x1b[36mstep:  3  \x1b[32mloss: 10.8424  \x1b[33m" + MEMORY + b"  \x1b[34mwps: 11,024\x1b[39m",
    "S6": b"step:  3  loss: 10.8424  " + MEMORY + b"  wps: 11,024  mfu: 12.05%",
    "S8": b"step:  3  loss: 10.8424  " + MEMORY + b"  tps: 11,024  tflops: 1,059.25  mfu: 15.99%",
    "S11": S11 + b"15.99%",
    "S12": S11 + b"N/A",
    "validate": b"validate step:  3  loss: 10.8424  " + MEMORY + b"  tps: 11,024",
}


@pytest.mark.parametrize("shape", WHOLE)
@pytest.mark.parametrize("prefix", [b"", PREFIX])
def test_a_line_cut_at_any_byte_gives_no_wrong_number(shape: str, prefix: bytes) -> None:
    """The line before shows how far lines go; the cut line ends the log, or another line follows."""
    line = prefix + WHOLE[shape]
    (want,) = rows(line + b"\n")
    before = line.replace(b"step:  3", b"step:  2") + b"\n"
    in_last_number = len(line) - len(b"1,024") if line.endswith(b"1,024") else len(line)
    for at in range(len(line)):
        for after in (b"", b"\n", b"\n" + PREFIX + b"Training completed\n"):
            if after and at >= in_last_number:
                continue  # a whole number at the end of a line without colours may be any shorter one
            for row in rows(before + line[:at] + after)[1:]:
                wrong = {
                    name: getattr(row, name)
                    for name in ROW_NUMBERS
                    if getattr(row, name) not in (None, getattr(want, name)) and not _is_shorter_loss(name, row, want)
                }
                assert not wrong, (line[:at], wrong)
                assert (row.kind, row.step) == (want.kind, 3)


def _is_shorter_loss(name: str, row: Row, want: Row) -> bool:
    """Cut after the fourth of five decimals: a loss as torchtitan printed it for years, off by less than rounding."""
    return name == "loss" and row.loss is not None and want.loss is not None and abs(row.loss - want.loss) < 1e-4


@pytest.mark.parametrize("shape", WHOLE)
def test_a_line_whose_beginning_is_lost_gives_no_wrong_number(shape: str) -> None:
    line = PREFIX + WHOLE[shape]
    (want,) = rows(line + b"\n")
    for at in range(len(line)):
        if shape == "validate" and line[at:].lstrip().startswith(b"step:"):
            continue  # it is, to the byte, a training line of 2024
        for row in rows(line[at:] + b"\n"):
            assert [getattr(row, name) for name in ROW_NUMBERS] == [getattr(want, name) for name in ROW_NUMBERS]
            assert (row.kind, row.step) == (want.kind, 3)


def test_a_step_line_that_lost_its_beginning_is_reported() -> None:
    line = WHOLE["S12"]
    reader = LogReader()
    for at in range(1, line.index(b"oss:") - 1):
        reader.feed(line[at:] + b"\n")
    records = reader.close()
    assert not records
    reader = LogReader()
    (record,) = reader.feed(line[3:] + b"\n")
    assert isinstance(record, Rejected)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_the_short_way_gives_what_the_long_way_gives(data: st.DataObject) -> None:
    lines = []
    for step in range(1, data.draw(st.integers(1, 6))):
        for rank in data.draw(st.permutations([0, 1, 2])):
            body = WHOLE[data.draw(st.sampled_from(["S6", "S8", "S11", "S12", "validate"]))]
            text = PREFIX.replace(b"rank0", b"rank%d" % rank) + body.replace(b" 3 ", b" %d " % step)
            if data.draw(st.booleans()):
                text = text.replace(b"loss: 10.8424", b"loss: -1.0000")
            lines.append(text)
    log = b"\n".join(lines) + b"\n"
    short, long = LogReader(), LogReader()
    long._quick.read = lambda block, start, at: 0  # type: ignore[method-assign]
    assert [*short.feed(log), *short.close()] == [*long.feed(log), *long.close()]
