"""The reader: bytes in; rows, events and rejected lines out, each as soon as it is certain."""

from __future__ import annotations

import json
from functools import cache

from harness.logs import columns
from harness.logs.announce import Announcer, event_needles
from harness.logs.lines import LIMIT, Blocks, Hit, Needles
from harness.logs.merge import Merger
from harness.logs.quick import Quick
from harness.logs.records import Event, Record, Rejected, Row
from harness.logs.rows import row_from_metrics, row_from_reading
from harness.logs.steplines import Facts, StepLines
from harness.logs.steps import Reading
from harness.logs.text import SPLIT_NUMBER, clean, decode, is_unfinished

JSON_NEEDLES = (b'"global_max_loss"', b"loss_metrics/global_avg_loss", b'"validation_metrics/loss"')
SHOWN = 200
"""Characters of a rejected line that are kept."""
_TAIL = 66
"""Bytes kept of the line before, enough for a time stamp that stands alone."""

_FIRST = (*columns.NEEDLES, *JSON_NEEDLES)
_JSON_FROM = len(columns.NEEDLES)
_EVENT_FROM = len(_FIRST)


@cache
def _search() -> Needles:
    """The search for everything that matters; building it takes milliseconds, and all readers can share one."""
    return Needles(_FIRST, event_needles())


class LogReader:
    """Reads one log, in pieces of any size; what comes out does not depend on how the bytes are cut.

    ``metrics_rank`` is the rank whose rows count where several ranks print (``harness.logs.merge`` has the whole rule).
    ``every_rank=True`` gives the rows of every rank instead of one per step. ``live=True`` is for a log that is being
    written: rows of pipeline stages that do not see the loss, and otherwise wait for one that does, then come sooner.
    """

    def __init__(self, metrics_rank: int | None = None, *, every_rank: bool = False, live: bool = False):
        self._announcer = Announcer()
        self._needles = _search()
        self._blocks = Blocks(self._needles)
        self._merger = Merger(metrics_rank, live=live)
        self._every_rank = every_rank
        self._steps = StepLines(self._reading, self._reject)
        self._quick = Quick(self._merger, self._steps.reach, self._number, self._row, remembers=not every_rank)
        self._line, self._counted = 1, 0
        self._before = b""
        self._out: list[Record] = []

    def feed(self, data: bytes) -> list[Record]:
        """What has become certain with ``data``, in the order of the log."""
        for block, closed in self._blocks.feed(data):
            self._block(block, closed)
        return self._take()

    def close(self) -> list[Record]:
        """What was still open. Nothing can be fed afterwards."""
        for block, closed in self._blocks.close():
            self._block(block, closed)
        self._steps.settle()
        self._merged(self._merger.close())
        return self._take()

    def _take(self) -> list[Record]:
        out, self._out = self._out, []
        return out

    # -- from blocks to lines -----------------------------------------------------------------------------------------

    def _block(self, block: bytes, closed: bool) -> None:
        """Visit the lines of ``block`` that hold a needle, and those that may continue an open record, in order."""
        steps_at, events_at = self._needles.find(block)
        size = len(block)
        beyond = (0, size + 1, size + 1)
        steps_at.append(beyond)
        events_at.append(beyond)
        steps, quick, newline_before = self._steps, self._quick.read, block.rfind
        position = other = self._counted = 0
        event = events_at[0][1]
        for _, at, _ in steps_at:
            if at < position:
                continue
            while (event < at or steps.open is not None) and position <= at and position < size:
                start = position
                if steps.open is None:
                    start = newline_before(b"\n", position, event) + 1 or position
                position = self._visit(block, start, closed, at, events_at, other)
                while event < position:
                    other += 1
                    event = events_at[other][1]
            if at < position or at > size:
                continue
            start = newline_before(b"\n", position, at) + 1 or position
            position = quick(block, start, at) or self._visit(block, start, closed, at, events_at, other)
            while event < position:
                other += 1
                event = events_at[other][1]
        self._number(block, size)
        self._before = block[-_TAIL:-1] if closed else block[-_TAIL:]

    def _visit(self, block: bytes, start: int, closed: bool, step: int, events_at: list[Hit], other: int) -> int:
        """Read the line at ``start``, whatever it is; where the next one starts.

        The next needle of a step line is at ``step``, the next of an event is ``events_at[other]``.
        """
        end = block.find(b"\n", start)
        if end < 0:
            end = len(block)
        else:
            closed = True
        self._number(block, start)
        line = block[start:end]
        if end - start > LIMIT:
            parts = list(self._blocks.parts(line))
            for number, part in enumerate(parts, 1):
                self._raw(part, self._found(part), closed and number == len(parts))
        elif step >= end and self._steps.open is None:
            found = []
            while events_at[other][1] < end:
                found.append(events_at[other][0] - _EVENT_FROM)
                other += 1
            self._events(line, found)
        else:
            if start:
                self._before = block[max(0, start - _TAIL) : start - 1]
            self._raw(line, self._found(line), closed)
        return end + 1

    def _number(self, block: bytes, position: int) -> int:
        """The number of the line at ``position``, which never goes back within a block."""
        self._line += block.count(b"\n", self._counted, position)
        self._counted = position
        return self._line

    def _found(self, line: bytes) -> list[int]:
        """The needles in ``line``."""
        first, rest = self._needles.find(line)
        return [number for number, _, _ in (*first, *rest)]

    def _raw(self, raw: bytes, hits: list[int], closed: bool) -> None:
        """One line as it stands, with the needles in it."""
        text = clean(raw)
        has_step = any(hit < _JSON_FROM for hit in hits)
        if has_step and SPLIT_NUMBER.search(raw):
            has_step = False
            if b"loss" in raw:
                self._reject("a colour changes inside a number, as in a diff of two logs", text, self._line)
        closed = closed and not (has_step and is_unfinished(raw))
        parts = text.rstrip(b"\r").split(b"\r") if has_step or self._steps.open is not None else ()
        before = self._before.rpartition(b"\n")[2]
        for number, part in enumerate(parts, 1):
            whole = closed or number < len(parts)
            used = self._steps.open is not None and self._steps.go_on(part, whole)
            if has_step and not used:
                self._steps.read(part, self._line, whole, before)
        self._events(text, [hit - _EVENT_FROM for hit in hits if hit >= _EVENT_FROM])
        if any(_JSON_FROM <= hit < _EVENT_FROM for hit in hits):
            self._json(text)

    # -- going out ----------------------------------------------------------------------------------------------------

    def _reading(self, reading: Reading, facts: Facts, line: int) -> None:
        """A record of a step line."""
        rank, time = facts
        if reading.kind == "final":
            data = {"step": reading.step, **reading.values}
            self._out.append(Event("final_metrics", line, time, rank, self._merger.segment_of(rank), data))
            return
        self._row(row_from_reading(reading, rank, time, line))

    def _row(self, row: Row) -> bool:
        """Hand ``row`` to the merger; whether it went out at once."""
        self._quick.forget()
        out = self._merger.add(row)
        if len(out) == 1 and out[0] is row:
            self._out.append(row)
            return True
        self._merged(out)
        if self._every_rank:
            self._out.append(row)
        return any(record is row for record in out)

    def _merged(self, records: list[Row | Event]) -> None:
        """What the merger gives back, if not just the row it was given."""
        for record in records:
            if isinstance(record, Event):
                self._out.append(record)
                if record.kind == "new_segment":
                    self._steps.reach.clear()
            elif not self._every_rank:
                self._out.append(record)

    def _events(self, line: bytes, found: list[int]) -> None:
        for event in self._announcer.events(line, found, self._line) if found else ():
            if event.kind == "training_start":
                step = event.data.get("step")
                event.data["resumed"] = None if step is None else step > 1
                self._quick.forget()
                self._merged(self._merger.started(step, event.rank, event.time, event.line))
            elif event.kind == "metrics_rank":
                self._merger.name_metrics_rank(event.data["rank_named"])
            event.segment = self._merger.segment_of(event.rank)
            self._out.append(event)

    def _json(self, text: bytes) -> None:
        """A line of JSONL metrics, which carries full precision."""
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            if text.lstrip().startswith(b"{"):
                self._reject("a JSON record that cannot be read", text, self._line)
            return
        row = row_from_metrics(record, self._line) if isinstance(record, dict) else None
        if row is not None:
            self._row(row)

    def _reject(self, reason: str, text: bytes, line: int) -> None:
        self._out.append(Rejected(line, reason, decode(text[: 4 * SHOWN]).strip()[:SHOWN]))
