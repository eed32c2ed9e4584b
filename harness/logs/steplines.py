"""Records out of lines: several on one line, or one over several lines, and what of a damaged one can be believed."""

from __future__ import annotations

from collections.abc import Callable

from harness.logs import steps
from harness.logs.columns import CANONICAL, DECIMALS, LEAD
from harness.logs.lines import RECORD
from harness.logs.records import ROW_NUMBERS
from harness.logs.steps import Damaged, Reading
from harness.logs.text import PREFIX_BYTES, lone_time, prefix_facts

MAX_WRAPS = 3
"""A record goes over at most this many further lines."""
ORDER = {name: number for number, name in enumerate(ROW_NUMBERS)}
"""The place of a column in torchtitan's order."""

Facts = tuple[int | None, str | None]
"""Rank and time of a record."""


class _Open:
    """A record that reached the end of its line before it was complete: the next line may hold the rest."""

    __slots__ = ("facts", "line", "reading", "start", "text", "wraps")

    def __init__(self, text: bytes, start: int, facts: Facts, line: int, reading: Reading | None):
        self.text, self.start, self.facts, self.line, self.reading, self.wraps = text, start, facts, line, reading, 0


class StepLines:
    """Hands on every record it is certain of, and says why it cannot be certain of others.

    ``accept`` gets a reading with rank, time and line; ``reject`` a reason, the text and the line.
    """

    def __init__(self, accept: Callable[[Reading, Facts, int], None], reject: Callable[[str, bytes, int], None]):
        self._accept, self._reject = accept, reject
        self.reach: dict[str, int] = {}
        """How far the columns of a kind of line go; to be cleared where another run, or version, begins."""
        self.open: _Open | None = None
        """Set where the next line must be shown to ``go_on``, whatever it holds."""

    def read(self, text: bytes, line: int, closed: bool, before: bytes) -> None:
        """Every record in ``text``, one clean line: usually one, several where the writes of ranks ran together.

        ``closed`` says whether a line feed ended the line, ``before`` is the end of the line before it.
        """
        leads = [match.start() for match in LEAD.finditer(text)]
        if not leads and steps.headless(text):
            self._reject("the columns of a step line without a step", text, line)
        behind = 0
        for number, start in enumerate(leads, 1):
            last = number == len(leads)
            end = len(text) if last else leads[number]
            first = max(behind, start - PREFIX_BYTES)
            record = text[first : min(end, start + RECORD)]
            last = last and end - start <= RECORD
            try:
                reading = steps.read(record, start - first)
            except Damaged as damage:
                self._reject(str(damage), text[start:end], line)
                behind = end
                continue
            if reading is None and not (last and steps.could_go_on(record)):
                continue
            facts = _facts(record[: start - first], before)
            if reading is not None:
                behind = first + reading.end
            if reading is not None and (reading.complete or not last):
                self._emit(reading, facts, line, closed=True)
            else:
                self.open = _Open(record, start - first, facts, line, reading)
                if not closed:
                    self.settle(closed=False)

    def go_on(self, text: bytes, closed: bool) -> bool:
        """Try to complete the open record with the line after it; whether ``text`` was used up by it."""
        record = self.open
        assert record is not None
        if record.wraps < MAX_WRAPS and text.strip():
            for joined in (record.text + b" " + text.lstrip(), record.text + text):
                reading = _joined(joined, record)
                if reading is None:
                    continue
                if reading.complete:
                    self.open = None
                    self._emit(reading, record.facts, record.line, closed=True)
                else:
                    record.text, record.reading, record.wraps = joined, reading, record.wraps + 1
                    if not closed:
                        self.settle(closed=False)
                return True
        self.settle()
        return False

    def settle(self, closed: bool = True) -> None:
        """Nothing continues the open record: what of it can be believed goes out."""
        record, self.open = self.open, None
        if record is None:
            return
        if record.reading is not None:
            self._emit(record.reading, record.facts, record.line, closed=closed)
        elif steps.is_stump(record.text, record.start):
            self._reject("the line ends before the loss", record.text[record.start :], record.line)

    def _emit(self, reading: Reading, facts: Facts, line: int, *, closed: bool) -> None:
        """Null what may be the stump of a number at the end of a line; reject where that is the loss."""
        last = reading.last
        if last:
            stump = not closed or reading.decimals < DECIMALS.get(last, 0)
            if reading.own and last in ("tps", "loss"):  # a stump may look whole, but the lines before went on
                stump = stump or ORDER[last] < self.reach.get(reading.kind, 0)
            if stump and last == "loss":
                self._reject("the line ends inside the loss", b"step: %d" % reading.step, line)
                return
            if stump:
                reading.values[last] = None
                reading.flags.append("cut")
        if "cut" not in reading.flags:
            furthest = max(ORDER[column] for column in reading.values)
            self.reach[reading.kind] = max(furthest, self.reach.get(reading.kind, 0))
        self._accept(reading, facts, line)


def _facts(prefix: bytes, before: bytes) -> Facts:
    """Rank and time of a record, from its prefix or from the line before."""
    rank, time = prefix_facts(prefix)
    return rank, time or lone_time(before)


def _joined(text: bytes, record: _Open) -> Reading | None:
    """The reading of a record with a further line, ``None`` where that line does not continue it."""
    match = CANONICAL.match(text, record.start)
    if match is None or match.end() <= len(record.text):
        return None
    if text[match.end() :].strip() and not steps.could_go_on(text):
        return None
    try:
        reading = steps.canonical(text, match)
    except Damaged:
        return None
    reading.flags.append("wrapped")
    return reading
