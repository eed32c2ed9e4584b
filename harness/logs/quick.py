"""The short way for the usual line: torchtitan's own, unharmed, which one expression reads straight from the block."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from harness.logs.columns import CANONICAL_LINE
from harness.logs.merge import Merger, Stream
from harness.logs.records import Row
from harness.logs.rows import row_from_tokens
from harness.logs.steplines import ORDER
from harness.logs.text import STANDARD_PREFIX, clean, iso

_COLUMNS = {"train": 8, "validate": 6}
"""Which group of ``CANONICAL_LINE`` a line must at least reach to be whole: MFU (or N/A), or tokens per second."""
_REACH = {"train": ORDER["mfu"], "validate": ORDER["tps"]}
_M = ord("m")
_MOST = 4096
"""How many different prefixes are remembered."""


class Sent(NamedTuple):
    """The row last sent, as text.

    A line of another rank with the same text up to the gradient norm, that is as long and ends in the same way, holds
    nothing that the merger would look at. It need not be read, only noted.
    """

    head: bytes
    """From behind the prefix to behind the gradient norm."""
    offset: int
    """Where in it ``step:`` stands."""
    stamp_size: int
    """How far before it the time stamp begins."""
    end: bytes
    """From the last percent sign (or N/A) to behind the line feed."""
    end_size: int
    longest: int
    """The length of the line and some more: room for longer numbers, not for a second record."""
    stream: Stream
    """Of the rank that printed it."""
    step: int
    time: str | None


def _sent(line: bytes, head_size: int, offset: int, stamp_size: int, stream: Stream, row: Row) -> Sent:
    """``row`` as it stands in ``line``, which begins behind the prefix and ends with a line feed."""
    end = line[max(line.rfind(b"%"), line.rfind(b"N/A")) :]
    return Sent(line[:head_size], offset, stamp_size, end, len(end), len(line) + 32, stream, row.step, row.time)


class Quick:
    """Reads usual lines one by one, and remembers what helps to read the next one faster."""

    def __init__(
        self,
        merger: Merger,
        reach: dict[str, int],
        number: Callable[[bytes, int], int],
        send: Callable[[Row], bool],
        *,
        remembers: bool,
    ):
        """``number`` gives the number of the line at a place in a block; ``send`` tells whether a row went out at once.

        ``reach`` is that of ``StepLines``. Without ``remembers`` every line is read in full.
        """
        self._merger, self._reach = merger, reach
        self._number, self._send, self._remembers = number, send, remembers
        self._kinds: dict[bytes, str | None] = {}
        self._streams: dict[bytes, Stream] = {}
        self._sent: Sent | None = None

    def forget(self) -> None:
        """A row went out that was not read here."""
        self._sent = None

    def read(self, block: bytes, start: int, at: int) -> int:
        """Read the line at ``start``, whose ``step:`` is at ``at``; where it ends, or 0 if it is not a usual one."""
        if self._sent is not None:
            head, offset, stamp_size, ending, end_size, longest, sender, step, time = self._sent
            begin = at - offset
            if block.startswith(head, begin):
                stream = self._streams.get(block[start : begin - stamp_size], sender)
                end = block.find(ending, at, begin + longest)
                new = stream is not sender and not stream.started and stream.segment == sender.segment
                if new and end > 0 and stream.train < step:
                    stream.train, stream.time = step, time
                    return end + end_size
        prefix = STANDARD_PREFIX.match(block, start, at)
        body = CANONICAL_LINE.match(block, at) if prefix is not None else None
        if prefix is None or body is None:
            return 0
        begin = prefix.end()
        between = block[begin:at]
        kind = self._kinds.get(between) or self._kind(between)
        if kind is None or body.lastindex < _COLUMNS[kind]:  # type: ignore[operator]
            return 0
        if kind == "validate" and b"\x1b" in between and block[body.end() - 2] != _M:
            return 0  # perhaps cut: its last number has nothing behind it, not even the end of the colour
        label, stamp = prefix.groups()
        rank = None if label is None else int(label)
        row = row_from_tokens(kind, body.groups(), rank, iso(stamp), self._number(block, start))
        sent_at_once = self._send(row)
        if self._reach.get(kind, -1) < _REACH[kind]:
            self._reach[kind] = _REACH[kind]
        if self._remembers:
            stamp_at = prefix.start(2)
            lead = block[start:stamp_at]
            if lead not in self._streams and len(self._streams) < _MOST:
                self._streams[lead] = self._merger.stream(rank)
            if sent_at_once and kind == "train" and len(self._streams) > 1:
                head_size = body.end(2 if row.grad_norm is None else 3) - begin
                line, stream = block[begin : body.end()], self._merger.stream(rank)
                self._sent = _sent(line, head_size, at - begin, begin - stamp_at, stream, row)
        return body.end()

    def _kind(self, between: bytes) -> str | None:
        """The kind of row that what stands between prefix and ``step:`` makes of it, ``None`` if that is unusual."""
        kind = {b"": "train", b"validate": "validate"}.get(clean(between).strip())
        if len(self._kinds) < _MOST:
            self._kinds[between] = kind
        return kind
