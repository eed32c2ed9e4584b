"""The reader: bytes in, rows and events out, each as soon as it is certain."""

from __future__ import annotations

import json
import re
from collections import defaultdict

from harness.logs import steps
from harness.logs.events import SHAPES, Shape
from harness.logs.lines import Line, LineFinder
from harness.logs.merge import Merger
from harness.logs.records import Event, Record, Rejected, Row
from harness.logs.steps import Damaged, Reading
from harness.logs.text import PREFIX_BYTES, SPLIT_NUMBER, clean, decode, prefix_facts

_STEP_NEEDLES = (b"step:", b"step=", b"loss:", b"| Loss:")
_JSON_NEEDLES = (b'"global_max_loss"', b"loss_metrics/global_avg_loss")
_LEAD = re.compile(rb"step:|\bstep=(?=\d)|\bStep (?=\d+/\d+ \|)")
_MESSAGE = re.compile(
    r"^\s*(?:\d+: )?(?:\[[^\]]{1,40}\]:?\s?)*\s*(?:\d{4}-\d\d-\d\d[T ][\d:]+(?:[.,]\d+)?Z? (?:- )?)?(?:(?:\S+ - )?[A-Z]{4,8} - )?"
)
_MAX_WRAPS = 3
_MAX_TEXT = 200


def _needles() -> tuple[list[bytes], dict[int, tuple[Shape, ...]]]:
    """All needles, and which shapes each of them announces."""
    by_needle: dict[bytes, list[Shape]] = defaultdict(list)
    for needle in (*_STEP_NEEDLES, *_JSON_NEEDLES):
        by_needle[needle] = []
    for shape in SHAPES:
        by_needle[shape.needle.encode()].append(shape)
    return list(by_needle), {index: tuple(shapes) for index, shapes in enumerate(by_needle.values())}


_NEEDLES, _SHAPES_OF = _needles()
_STEPS = frozenset(range(len(_STEP_NEEDLES)))
_JSONS = frozenset(range(len(_STEP_NEEDLES), len(_STEP_NEEDLES) + len(_JSON_NEEDLES)))


class _Pending:
    """A record that reached the end of its line before it was complete."""

    __slots__ = ("closed", "line", "prefix", "reading", "start", "text", "wraps")

    def __init__(self, text: bytes, start: int, prefix: bytes, line: int, reading: Reading | None):
        self.text, self.start, self.prefix, self.line, self.reading = text, start, prefix, line, reading
        self.wraps, self.closed = 0, True


class LogReader:
    """Reads one log, in pieces of any size; the result does not depend on how the bytes are cut.

    ``metrics_rank`` is the rank whose rows count where several ranks print (see ``harness.logs.merge`` for the rule).
    ``every_rank=True`` gives every rank's rows instead of one row per step.
    """

    def __init__(self, metrics_rank: int | None = None, *, every_rank: bool = False):
        self._finder = LineFinder(_NEEDLES)
        self._merger = Merger(metrics_rank)
        self._every_rank = every_rank
        self._pending: _Pending | None = None
        self._widest: dict[str, int] = {}
        self._out: list[Record] = []

    def feed(self, data: bytes) -> list[Record]:
        """What has become certain with ``data``, in the order of the log."""
        for line in self._finder.feed(data):
            self._line(line)
        return self._take()

    def close(self) -> list[Record]:
        """What was still open; nothing can be fed afterwards."""
        for line in self._finder.close():
            self._line(line)
        self._settle()
        self._out += self._merger.close()
        return self._take()

    def _take(self) -> list[Record]:
        out, self._out = self._out, []
        return out

    # -- lines --------------------------------------------------------------------------------------------------------

    def _line(self, line: Line) -> None:
        if SPLIT_NUMBER.search(line.raw) and not _STEPS.isdisjoint(line.hits):
            self._settle()
            if b"loss" in line.raw:
                self._reject(line.number, "a colour changes inside a number (a diff of two logs?)", clean(line.raw))
            return
        text = clean(line.raw)
        parts = text.rstrip(b"\r").split(b"\r")
        for part in parts[:-1]:
            self._part(line, part, closed=True)
        self._part(line, parts[-1], closed=line.closed)

    def _part(self, line: Line, text: bytes, *, closed: bool) -> None:
        consumed = self._continue(line, text, closed=closed) if self._pending is not None else False
        hits = line.hits
        if not hits:
            return
        if not consumed and not _STEPS.isdisjoint(hits):
            self._steps(line.number, text, closed)
        if not _JSONS.isdisjoint(hits):
            self._json(line.number, text)
        if any(hit not in _STEPS and hit not in _JSONS for hit in hits):
            self._events(line, text)

    # -- steps --------------------------------------------------------------------------------------------------------

    def _steps(self, number: int, text: bytes, closed: bool) -> None:
        leads = [match.start() for match in _LEAD.finditer(text)]
        if not leads:
            if steps.headless(text):
                self._reject(number, "the columns of a step line without a step", text)
            return
        before = 0
        for index, start in enumerate(leads):
            end = leads[index + 1] if index + 1 < len(leads) else len(text)
            prefix = text[max(before, start - PREFIX_BYTES) : start]
            try:
                reading = steps.read(text[:end] if end < len(text) else text, start)
            except Damaged as damage:
                self._reject(number, str(damage), text[start:end])
                before = end
                continue
            at_end = end == len(text)
            if reading is None:
                if at_end and steps.could_continue(text):
                    self._hold(_Pending(text, start, prefix, number, None), closed)
                continue
            before = reading.end
            if reading.complete or not at_end:
                self._emit(reading, prefix, number, closed=True)
            else:
                self._hold(_Pending(text, start, prefix, number, reading), closed)

    def _hold(self, pending: _Pending, closed: bool) -> None:
        self._pending, pending.closed = pending, closed
        if closed:
            self._finder.want_next = True
        else:
            self._settle()

    def _continue(self, line: Line, text: bytes, *, closed: bool) -> bool:
        """Try to complete the pending record with the line after it; whether ``text`` was used up by it."""
        pending = self._pending
        assert pending is not None
        if pending.wraps < _MAX_WRAPS and text.strip():
            for joined in (pending.text + b" " + text.lstrip(), pending.text + text):
                match = steps.CANONICAL.match(joined, pending.start)
                if match is None or match.end() <= len(pending.text):
                    continue
                try:
                    reading = steps.read(joined, pending.start)
                except Damaged:
                    continue
                if reading is None:
                    continue
                pending.text, pending.reading = joined, reading
                pending.wraps += 1
                if "wrapped" not in reading.flags:
                    reading.flags.append("wrapped")
                if reading.complete:
                    self._pending = None
                    self._emit(reading, pending.prefix, pending.line, closed=True)
                else:
                    self._hold(pending, closed)
                return True
        self._settle()
        return False

    def _settle(self) -> None:
        """Nothing continues the pending record: decide what of it can be believed."""
        pending, self._pending = self._pending, None
        if pending is not None and pending.reading is not None:
            self._emit(pending.reading, pending.prefix, pending.line, closed=pending.closed)

    def _emit(self, reading: Reading, prefix: bytes, number: int, *, closed: bool) -> None:
        if not self._believe(reading, closed):
            self._reject(number, "the line ends inside the loss", b"step: %d" % reading.step)
            return
        rank, time = prefix_facts(prefix)
        if reading.kind == "final":
            data = {"step": reading.step, **reading.values}
            self._out.append(Event("final_metrics", number, time, rank, self._merger.segment_of(rank), data))
            return
        row = _row(reading, rank, time, number)
        if self._every_rank:
            row.segment = self._merger.segment_of(rank)
            self._merger.add(row)
            row.segment = self._merger.segment_of(rank)
            self._out.append(row)
        else:
            self._out += self._merger.add(row)

    def _believe(self, reading: Reading, closed: bool) -> bool:
        """Null what may be the stump of a number; whether the loss is whole."""
        last, columns = reading.last, len(reading.values)
        if last:
            stump = not closed
            if closed and last in ("grad_norm", "tflops"):
                stump = reading.decimals < (4 if last == "grad_norm" else 2)
            elif closed and last in ("tps", "loss"):
                stump = columns < self._widest.get(reading.kind, 0)
            if stump and last == "loss":
                return False
            if stump:
                reading.values[last] = None
                reading.flags.append("cut")
        if "cut" not in reading.flags:
            self._widest[reading.kind] = max(columns, self._widest.get(reading.kind, 0))
        return True

    # -- other sources and events -------------------------------------------------------------------------------------

    def _json(self, number: int, text: bytes) -> None:
        """A line of torchtitan's JSONL metrics, which carries full precision."""
        try:
            record = json.loads(text)
        except ValueError:
            return
        row = row_from_metrics(record, number) if isinstance(record, dict) else None
        if row is not None:
            self._out += self._merger.add(row)

    def _events(self, line: Line, text: bytes) -> None:
        shown = decode(text)
        rank: int | None = None
        time: str | None = None
        for hit in line.hits:
            for shape in _SHAPES_OF[hit]:
                subject = _MESSAGE.sub("", shown, count=1) if shape.kind == "exception" else shown
                data = shape.read(subject)
                if data is None:
                    continue
                if time is None and rank is None:
                    rank, time = prefix_facts(text[:PREFIX_BYTES])
                self._event(Event(shape.kind, line.number, time, rank, 0, data))

    def _event(self, event: Event) -> None:
        if event.kind == "training_start":
            self._out += self._merger.started(event.data["step"], event.rank, event.time, event.line)
            event.data["resumed"] = event.data["step"] > 1
        elif event.kind == "metrics_rank":
            self._merger.name_metrics_rank(event.data["rank_named"])
        event.segment = self._merger.segment_of(event.rank)
        self._out.append(event)

    def _reject(self, number: int, reason: str, text: bytes) -> None:
        self._out.append(Rejected(number, reason, decode(text[:_MAX_TEXT]).strip()))


def _row(reading: Reading, rank: int | None, time: str | None, number: int) -> Row:
    """A row, with placeholders turned into null and said so."""
    values = reading.values
    flags = [flag for flag in reading.flags if flag != "open"]
    loss = values.get("loss")
    if loss is not None and loss < 0:
        values["loss"] = None
        flags.append("loss_hidden")
    memory = values.get("memory_gib")
    if memory is not None and not memory > 0:
        values["memory_gib"] = values["memory_pct"] = None
        flags.append("memory_placeholder")
    mfu = values.get("mfu")
    if mfu is not None and mfu > 100:
        flags.append("mfu_over_100")
    return Row(
        reading.kind,
        0,
        reading.step,
        **values,
        rank=rank,
        time=time,
        line=number,
        flags=tuple(flags),
        extra=reading.extra or None,
    )


def row_from_metrics(record: dict, number: int) -> Row | None:
    """The row in one record of JSONL metrics (flat or with ``extras``), or ``None`` if it is not one."""
    values = {**record, **record["extras"]} if isinstance(record.get("extras"), dict) else record
    step = values.get("step")
    loss = values.get("loss_metrics/global_avg_loss", values.get("loss"))
    if not isinstance(step, int) or not isinstance(loss, int | float):
        return None

    def get(name: str) -> float | None:
        value = values.get(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    numbers = {
        "loss": loss,
        "grad_norm": get("grad_norm"),
        "memory_gib": get("memory/max_reserved(GiB)"),
        "memory_pct": get("memory/max_reserved(%)"),
        "tps": get("throughput(tps)"),
        "tflops": get("tflops"),
        "mfu": get("mfu(%)"),
    }
    reading = Reading("train", step, numbers, 0, 0)
    row = _row(reading, None, None, number)
    row.source = "metrics_jsonl"
    return row
