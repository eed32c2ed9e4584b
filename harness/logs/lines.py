"""Bytes in, interesting lines out: the incremental part, which knows nothing of what a line means.

A multi-pattern search (Aho-Corasick) finds the lines that hold a needle; all others are only counted. What comes out is a
function of the bytes alone, however they are cut into pieces. A line longer than ``LIMIT`` is handed out in parts, so that
memory and time stay bounded; a part never ends inside or shortly before a needle's record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import ahocorasick_rs

LIMIT = 64 * 1024
_RECORD = 4 * 1024
"""No record is longer than this; a needle nearer than this to the end of a part starts the next part instead."""
_LEAD = 512
"""How much of what stands before such a needle (its prefix) goes with it."""


@dataclass(slots=True)
class Line:
    """One line (or part of an over-long one) that holds a needle, or that was asked for as a successor."""

    number: int
    raw: bytes
    """Without the line feed."""
    hits: tuple[int, ...]
    """Indexes of the needles in it, in order of occurrence, repeats left out."""
    closed: bool
    """Whether a line feed ended it: what stands last in an unclosed line may be cut."""


class LineFinder:
    """Feed it bytes; it yields the lines with needles. Set ``want_next`` while handling a line to get its successor too."""

    def __init__(self, needles: Sequence[bytes]):
        self._search = ahocorasick_rs.BytesAhoCorasick(list(needles)).find_matches_as_indexes
        self._tail = bytearray()
        self._number = 1
        self.want_next = False

    def feed(self, data: bytes) -> Iterator[Line]:
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._tail += data
        else:
            block = bytes(self._tail) + data[:cut] if self._tail else data[:cut]
            self._tail = bytearray(data[cut:])
            yield from self._block(block)
        if len(self._tail) > LIMIT:
            yield from self._shorten()

    def close(self) -> Iterator[Line]:
        rest, self._tail = bytes(self._tail), bytearray()
        if rest:
            yield from self._emit(rest, closed=False)

    def _block(self, block: bytes) -> Iterator[Line]:
        """``block`` ends with a line feed."""
        hits = self._search(block, overlapping=True)
        hit, counted, position = 0, 0, 0
        while position < len(block):
            if not self.want_next:
                while hit < len(hits) and hits[hit][1] < position:
                    hit += 1
                if hit == len(hits):
                    break
                position = block.rfind(b"\n", position, hits[hit][1]) + 1 or position
            end = block.find(b"\n", position)
            self._number += block.count(b"\n", counted, position)
            counted = position
            if end - position > LIMIT:
                yield from self._emit(block[position:end], closed=True)
            else:
                found: list[int] = []
                while hit < len(hits) and hits[hit][1] < end:
                    if hits[hit][1] >= position and hits[hit][0] not in found:
                        found.append(hits[hit][0])
                    hit += 1
                self.want_next = False
                yield Line(self._number, block[position:end], tuple(found), True)
            position = end + 1
        self._number += block.count(b"\n", counted)

    def _emit(self, line: bytes, *, closed: bool) -> Iterator[Line]:
        """One line, in parts where it is over-long."""
        while len(line) > LIMIT:
            cut, found = self._cut(line)
            yield from self._part(line[:cut], found, closed=False)
            line = line[cut:]
        yield from self._part(line, self._search(line, overlapping=True), closed=closed)

    def _shorten(self) -> Iterator[Line]:
        """Hand out what of an unfinished over-long line can no longer change."""
        line = bytes(self._tail)
        while len(line) > LIMIT:
            cut, found = self._cut(line)
            yield from self._part(line[:cut], found, closed=False)
            line = line[cut:]
        self._tail = bytearray(line)

    def _part(self, part: bytes, hits: Sequence[tuple[int, int, int]], *, closed: bool) -> Iterator[Line]:
        if hits or self.want_next:
            self.want_next = False
            yield Line(self._number, part, tuple(dict.fromkeys(hit[0] for hit in hits)), closed)

    def _cut(self, line: bytes) -> tuple[int, list[tuple[int, int, int]]]:
        """Where the first part of an over-long line ends, decided by its first ``LIMIT`` bytes alone, and its hits."""
        hits = self._search(line[:LIMIT], overlapping=True)
        late = next((start for _, start, _ in hits if start >= LIMIT - _RECORD), None)
        cut = LIMIT - _LEAD if late is None else late - _LEAD
        return cut, [hit for hit in hits if hit[2] <= cut]
