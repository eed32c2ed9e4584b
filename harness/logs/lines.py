"""Bytes in, blocks of whole lines out, and where in a block the needles are: the part that knows no meaning.

What comes out is a function of the bytes alone, however they are cut into pieces. A line longer than ``LIMIT`` is
handed out in parts, so that memory and time stay bounded; a part never ends inside the record of a needle or shortly
before it.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

import ahocorasick_rs

LIMIT = 64 * 1024
RECORD = 4 * 1024
"""No record is longer than this; a needle nearer than this to the end of a part goes into the next part instead."""
LEAD = 512
"""How much of what stands before such a needle (its prefix) goes with it."""
GROUP = 48
"""Needles per search. The searcher compares with SIMD (several GB/s) from 5 to about 60 needles and walks an
automaton, ten times slower, beyond; two fast searches are faster than one slow one."""

_EDGE = re.compile(rb"[\x1b\s]")
"""Where a line is best cut: before a word or a colour code, not inside one."""

Hit = tuple[int, int, int]
"""Number of the needle, and where it starts and ends."""


class Needles:
    """A multi-pattern search (Aho-Corasick) for needles, in groups that each stay within the fast searcher's limit."""

    def __init__(self, first: Sequence[bytes], rest: Sequence[bytes]):
        """``first`` form a group of their own; the numbers of ``rest`` go on from theirs."""
        self._first = _search(first)
        self._rest = [(len(first) + at, _search(rest[at : at + GROUP])) for at in range(0, len(rest), GROUP)]

    def find(self, text: bytes) -> tuple[list[Hit], list[Hit]]:
        """All hits of the first needles in ``text`` and all of the rest, each by position.

        Of two needles that overlap only one may be found.
        """
        found = [(number + offset, start, end) for offset, search in self._rest for number, start, end in search(text)]
        found.sort(key=itemgetter(1))
        return self._first(text), found


def _search(needles: Sequence[bytes]) -> Callable[[bytes], list[Hit]]:
    kind = ahocorasick_rs.MATCHKIND_LEFTMOST_LONGEST  # the SIMD searcher supports the leftmost kinds only
    return ahocorasick_rs.BytesAhoCorasick(list(needles), kind).find_matches_as_indexes


class Blocks:
    """Cuts a stream of bytes into blocks of whole lines.

    ``feed`` and ``close`` yield ``(block, closed)``: a closed block ends with a line feed; one that is not closed is
    part of an over-long line, or the end of a log that does not end with a line feed.
    """

    def __init__(self, needles: Needles):
        self._needles = needles
        self._tail = bytearray()
        self._head: bytes | None = b""
        self._decoder: codecs.IncrementalDecoder | None = None

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        if self._head is not None or self._decoder is not None:
            data = self._utf8(data)
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._tail += data
        else:
            block = b"".join((self._tail, memoryview(data)[:cut])) if self._tail else data[:cut]
            self._tail = bytearray(data[cut:])
            yield block, True
        if len(self._tail) > LIMIT:
            line = bytes(self._tail)
            while len(line) > LIMIT:
                cut = self._cut(line)
                yield line[:cut], False
                line = line[cut:]
            self._tail = bytearray(line)

    def close(self) -> Iterator[tuple[bytes, bool]]:
        if self._head:
            self._tail += self._head
        rest, self._tail = bytes(self._tail), bytearray()
        if rest:
            yield rest, False

    def parts(self, line: bytes) -> Iterator[bytes]:
        """``line`` (without its line feed) in the parts it would have been cut into, had it come piece by piece."""
        while len(line) > LIMIT:
            cut = self._cut(line)
            yield line[:cut]
            line = line[cut:]
        yield line

    def _cut(self, line: bytes) -> int:
        """Where the first part of an over-long line ends, decided by its first ``LIMIT`` bytes alone."""
        late = [start for hits in self._needles.find(line[:LIMIT]) for _, start, _ in hits if start >= LIMIT - RECORD]
        cut = min(late, default=LIMIT) - LEAD
        edge = _EDGE.search(line, cut, cut + LEAD // 2)
        return edge.start() if edge is not None else cut

    def _utf8(self, data: bytes) -> bytes:
        """Logs teed by PowerShell are UTF-16, which their first two bytes say."""
        if self._head is not None:
            data = self._head + data
            if len(data) < 2:
                self._head = data
                return b""
            self._head = None
            if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        return self._decoder.decode(data).encode("utf-8", "replace") if self._decoder else data
