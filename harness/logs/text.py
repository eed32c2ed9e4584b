"""Undoing what terminals, launchers and shippers do to a line: colour codes, NULs, and the prefix with rank and time.

Everything here works on text that ``lines`` has bounded in length, and is linear in it.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache

_SPELT_ESC = rb"\^\[|\\u001b|\\x1[bB]|\\033|\\e|\xe2\x90\x9b"
"""The ESC byte written out by cat -v, JSON, repr, shells, and as its Unicode picture."""

ANSI = re.compile(
    rb"\x1b\[[0-?]*+[ -/]*+[@-~]"  # CSI: colours of every depth, cursor moves, erasures
    rb"|\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)?"  # OSC: titles and links
    rb"|\x1b[@-Z\\-_]?"  # any other escape, or one whose end was lost
    rb"|(?:" + _SPELT_ESC + rb")\[[\d;]*+m"  # colours written out as text: ^[[31m, \u001b[31m
    rb"|\[\d{1,3}(?:;\d{1,3})*+m"  # colours that lost their ESC byte: [36m
)
_BARE_COLOUR = re.compile(rb"\[[\d;]*+m")
"""What every spelling of a colour has in it. (``[m`` is in much else as well: this only tells where to look closer.)"""

SPLIT_NUMBER = re.compile(rb"[\d.](?:(?:\x1b|" + _SPELT_ESC + rb")?\[[\d;]*+m)++\d")
"""A colour change inside a number. A word-diff of two logs, which puts both values side by side, looks like this."""

_COLOURED_LOSS = re.compile(rb"\x1b\[[\d;]++m ?loss:")

PREFIX_BYTES = 400
"""How far back from a record its prefix is looked for."""

STANDARD_PREFIX = re.compile(
    rb"(?:\[rank(\d{1,6})\]:)?+(?:\[titan\] )?+"
    rb"(\d{4}-\d\d-\d\d [0-2]\d:[0-5]\d:[0-5]\d,\d{3}) - [^\s]{1,80} - [A-Z]{4,8} - "
)
"""torchtitan's own prefix (since 2024-01; ``[titan]`` since 2025-02) behind torchrun's: rank and time."""

_TORCHRUN_RANK = re.compile(rb"\[rank(\d{1,6})\]")
_OTHER_RANK = re.compile(
    rb"\[rank-(\d{1,6})/\d+\]"  # Primus
    rb"|\[default(\d{1,6})\]:"  # torchrun --tee without --role
    rb"|\[trainer(\d{1,6})\\?\|\d+\]"  # torchrun with a role: global rank | local rank
    rb"|^\[\d+,(\d{1,6})\]<std"  # mpirun --tag-output
    rb"|^\s*(\d{1,6}): "  # srun --label
    rb"|(?:^|lines\] |\s)\[(\d{1,6})\] \[titan\]"  # Monarch
)
_TIME = re.compile(rb"(\d{4})-?(\d\d)-?(\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(?!\d)")
_LONE_TIME = re.compile(rb"\s*(?:" + _TIME.pattern + rb")(?:Z|[+-]\d\d:?\d\d)?\s*$")


def clean(raw: bytes) -> bytes:
    """``raw`` without colour codes, other escape sequences and NUL bytes."""
    if b"\0" in raw:
        raw = raw.replace(b"\0", b"")
    if b"\x1b" in raw or (b"[" in raw and _BARE_COLOUR.search(raw) is not None):
        return ANSI.sub(b"", raw)
    return raw


def is_unfinished(raw: bytes) -> bool:
    """Whether a coloured step line does not end in what switches the colour off, as it does unless it was cut."""
    return _COLOURED_LOSS.search(raw) is not None and not raw.rstrip().endswith(b"m")


def decode(text: bytes) -> str:
    """``text`` as a string; bytes that are not UTF-8 become U+FFFD."""
    return text.decode("utf-8", "replace")


def iso(stamp: bytes) -> str | None:
    """torchtitan's ``2026-10-20 10:11:12,345`` as ISO 8601; ``None`` if there is no such time."""
    text = stamp.replace(b" ", b"T").replace(b",", b".").decode("ascii")
    return text if _has_day(text[:13]) else None


@lru_cache(maxsize=64)
def _has_day(hour: str) -> bool:
    """Whether there is such an hour: the rest of a stamp cannot be wrong, and an hour has many lines."""
    return _possible(hour) is not None


def _possible(text: str) -> str | None:
    try:
        datetime.fromisoformat(text[:26])
    except ValueError:
        return None
    return text


def prefix_facts(prefix: bytes) -> tuple[int | None, str | None]:
    """Rank and time (ISO 8601, no zone) that stand before a record, each ``None`` where the prefix does not say.

    ``[rankN]`` goes before every other label, and the first before later ones, since it is the launcher's. Of several
    time stamps the last counts: shippers put theirs in front of the program's own.
    """
    prefix = prefix[-PREFIX_BYTES:]
    found = _TORCHRUN_RANK.search(prefix) or _OTHER_RANK.search(prefix)
    rank = int(found.group(found.lastindex or 1)) if found else None
    stamps = _TIME.findall(prefix)
    return rank, _join(stamps[-1]) if stamps else None


def lone_time(line: bytes) -> str | None:
    """The time of a line that holds nothing else: some shippers put a record's time on the line before it."""
    match = _LONE_TIME.match(line) if len(line) < 64 else None
    return _join(match.groups()) if match else None


def _join(stamp: tuple[bytes, ...]) -> str | None:
    year, month, day, clock, fraction = (part.decode() if part else "" for part in stamp)
    return _possible(f"{year}-{month}-{day}T{clock}" + (f".{fraction}" if fraction else ""))
