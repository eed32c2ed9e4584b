"""Bounded work: however a log is made, each byte is looked at a bounded number of times and little is held.

These are counts, not times; the times are in tests/bench/bench_log_reader.py.
"""

from __future__ import annotations

import pytest

from harness.logs import LogReader, Row, steps
from harness.logs.announce import SHAPES, event_needles
from harness.logs.lines import GROUP, LIMIT
from harness.logs.reader import _FIRST

SIZE = 200_000
RECORD = b"step:  1  loss: 12.24545  grad_norm:  1.0000  memory:  1.00GiB(1.00%)  tps: 12  tflops: 1.00  mfu: 1.00%"
INPUTS = {
    "letters": b"x" * SIZE,
    "NULs": b"\0" * SIZE,
    "step labels": b"step: " * (SIZE // 6),
    "loss labels": b"loss: " * (SIZE // 6),
    "records on one line": (RECORD + b"  ") * (SIZE // len(RECORD)),
    "colour codes": b"\x1b[31m" * (SIZE // 5),
    "colour codes that lost their ESC": b"[31m" * (SIZE // 4),
    "coloured labels": b"\x1b[31mloss: " * (SIZE // 11),
    "nested prefixes": b"[rank0]:" * (SIZE // 8),
    "unterminated OSC sequences": b"\x1b]0;step: 1" * (SIZE // 11),
    "carriage returns": b"step: 1  loss:\r" * (SIZE // 15),
    "wraps that never end": b"step: 1  loss:\n" * (SIZE // 15),
    "commas": b"step: 1  loss: " + b"1," * (SIZE // 2),
    "blanks": b"step:" + b" " * SIZE,
    "event needles": b"[Override] " * (SIZE // 11),
    "time stamps": b"2026-03-04 05:06:07 step: 1 " * (SIZE // 28),
}


class Counting(LogReader):
    """Counts the bytes that are looked at line by line."""

    seen = 0

    def _raw(self, raw: bytes, hits: list[int], closed: bool) -> None:
        self.seen += len(raw)
        super()._raw(raw, hits, closed)


@pytest.mark.parametrize(
    "end", [b"", b"\n" + RECORD + b"\n", b" " + RECORD + b"\n"], ids=["cut", "next line", "same line"]
)
@pytest.mark.parametrize("name", INPUTS)
def test_work_and_memory_are_bounded(name: str, end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    data = INPUTS[name] + end
    looked_at = 0
    read = steps.read

    def counted(text: bytes, start: int) -> steps.Reading | None:
        nonlocal looked_at
        looked_at += len(text)
        return read(text, start)

    monkeypatch.setattr(steps, "read", counted)
    reader, found, held = Counting(), [], 0
    for at in range(0, len(data), 4096):
        found += reader.feed(data[at : at + 4096])
        held = max(held, len(reader._blocks._tail))
    found += reader.close()
    assert held <= LIMIT + 4096
    assert reader.seen <= 1.05 * len(data)
    assert looked_at <= 100 * len(data)
    swallowed = not end.startswith(b"\n") and name in ("unterminated OSC sequences", "time stamps")
    if end and not swallowed and name != "records on one line":
        last = [record for record in found if isinstance(record, Row)][-1:]
        assert [(row.step, row.mfu) for row in last] == [(1, 1.0)]


def test_the_search_stays_within_what_its_fast_form_can_do() -> None:
    assert 5 <= len(_FIRST) <= GROUP <= 60
    for shape in SHAPES:
        assert len(shape.needle) >= 4, f"{shape.needle!r} is in every other line"
        assert not shape.needle.startswith(" "), "a needle that begins with a blank is hidden by many others"
    assert len(event_needles()) == len({shape.needle for shape in SHAPES})


def test_needles_that_hide_each_other_are_found_nevertheless() -> None:
    reader = LogReader()
    lines = b"torch.distributed.elastic.errors.ChildFailedError: \ntorch.OutOfMemoryError: CUDA out of memory.\n"
    kinds = [record.to_json()["kind"] for record in reader.feed(lines)]
    assert kinds == ["job_failed", "exception", "oom"]
