"""The bytes of a log in, the same bytes without secrets out: whole lines, so that no secret is cut in two unseen."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import ahocorasick_rs

from harness.privacy import MASK, NEEDLES, known_secrets, redact_bytes

LIMIT = 64 * 1024
"""A line longer than this is passed on in pieces."""
KEPT_BACK = 1024
"""How much of the end of a piece waits for what follows it: the longest secret without a separator in it."""
TRIES = 8
_SEPARATORS = (b" ", b",", b";", b"\t", b"\r", b'"')
_BEGIN_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_END_KEY = b"PRIVATE KEY-----"
_MAX_KEY_LINES = 200


class Scrubber:
    """One stream of a log, in pieces of any size; what comes out ends at line ends but for over-long lines.

    ``prefix`` is put before every line, as torchrun does when it shows a rank's output.
    """

    def __init__(self, prefix: bytes = b"") -> None:
        self._prefix = prefix
        needles = [needle.encode() for needle, _ in NEEDLES]
        needles += [secret.encode("utf-8", "surrogateescape").lower() for secret in known_secrets()]
        self._search = ahocorasick_rs.BytesAhoCorasick(needles).find_matches_as_indexes
        self._pending = bytearray()
        self._in_line = False  # a piece of the current line has been passed on
        self._key_lines = 0  # lines of a private key that may still follow

    def feed(self, data: bytes) -> bytes:
        """The lines that ``data`` completes."""
        self._pending += data
        cut = data.rfind(b"\n") + 1
        done = len(self._pending) - len(data) + cut if cut else 0
        out = bytearray()
        if done:
            out += self._lines(bytes(self._pending[:done]))
            del self._pending[:done]
        while len(self._pending) > LIMIT:
            out += self._piece()
        return bytes(out)

    def close(self) -> bytes:
        """The rest, which no line feed ended."""
        rest, self._pending = bytes(self._pending), bytearray()
        return self._lines(rest) if rest else b""

    def _lines(self, block: bytes) -> bytes:
        clean = self._scrub(block)
        if not self._prefix:
            return clean
        start = b"" if self._in_line else self._prefix
        self._in_line = not clean.endswith(b"\n")
        body = clean if self._in_line else clean[:-1]
        return start + body.replace(b"\n", b"\n" + self._prefix) + (b"" if self._in_line else b"\n")

    def _piece(self) -> bytes:
        """The first part of an over-long line, cut where scrubbing the parts is scrubbing the whole."""
        whole = bytes(self._pending[:LIMIT])
        cut = self._safe_cut(whole) if self._search(whole.lower(), overlapping=True) else 0
        cut = cut or LIMIT - KEPT_BACK  # no secret in sight, or one blob without any separator
        del self._pending[:cut]
        return self._lines(whole[:cut])

    @staticmethod
    def _safe_cut(whole: bytes) -> int:
        """Behind which separator to cut; 0 if there is none."""
        scrubbed, end = redact_bytes(whole), LIMIT - KEPT_BACK
        for _ in range(TRIES):
            cut = max(whole.rfind(separator, 0, end) for separator in _SEPARATORS) + 1
            if cut == 0 or redact_bytes(whole[:cut]) + redact_bytes(whole[cut:]) == scrubbed:
                return cut
            end = cut - 1
        return 0

    def _scrub(self, block: bytes) -> bytes:
        """``block`` with the lines scrubbed that hold a needle; almost none do."""
        hits = self._search(block.lower(), overlapping=True)
        if not hits and not self._key_lines:
            return block
        if self._key_lines or _BEGIN_KEY.search(block):
            return b"".join(self._scrub_line(line) for line in block.splitlines(keepends=True))
        out, position, hit = bytearray(), 0, 0
        while hit < len(hits):
            begin = block.rfind(b"\n", position, hits[hit][1]) + 1 or position
            end = block.find(b"\n", hits[hit][1]) + 1 or len(block)
            shapes = set()
            while hit < len(hits) and hits[hit][1] < end:
                needle = hits[hit][0]
                shapes.update(NEEDLES[needle][1:] if needle < len(NEEDLES) else ())
                hit += 1
            out += block[position:begin] + redact_bytes(block[begin:end], sorted(shapes))
            position = end
        return bytes(out + block[position:])

    def _scrub_line(self, line: bytes) -> bytes:
        """A line of a block that holds a private key, which goes on over lines without any mark."""
        if not self._key_lines:
            if (found := _BEGIN_KEY.search(line)) is None or _END_KEY in line[found.end() :]:
                return redact_bytes(line)
            self._key_lines = _MAX_KEY_LINES
            return redact_bytes(line[: found.start()]) + MASK.encode() + b"\n"
        self._key_lines = 0 if _END_KEY in line else self._key_lines - 1
        return MASK.encode() + b"\n"


def scrub_file(file: Path) -> bool:
    """Rewrite a file without its secrets, if it has any; whether it had."""
    try:
        data = file.read_bytes()
        scrubber = Scrubber()
        clean = scrubber.feed(data) + scrubber.close()
        if clean != data:
            file.write_bytes(clean)
    except OSError:
        return False
    return clean != data


def scrub_files(files: Iterable[Path]) -> list[Path]:
    """Scrub what other programs wrote into a run directory; the files that had secrets."""
    return [file for file in files if file.is_file() and scrub_file(file)]
