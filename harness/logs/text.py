"""Undoing what terminals, launchers and shippers do to a line: colour codes, NULs, and the prefix with rank and time.

Everything here works on one line that ``lines`` has bounded in length, and is linear in it.
"""

from __future__ import annotations

import re

_ESC = rb"(?:\x1b|\^\[|\\u001b|\\x1b|\\033|\xe2\x90\x9b)"
_COLOUR_BODY = rb"\[\d{1,3}(?:;\d{1,3})*m"
_SEQUENCE = (
    rb"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours of every depth, cursor moves, erasures
    rb"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles and links
    rb"|\x1b[@-Z\\-_]?"  # any other escape, or one whose end was lost
    rb"|" + _ESC + rb"\[[\d;]*m"  # colours written out as text: ^[[31m, \u001b[31m
    rb"|" + _COLOUR_BODY  # colours that lost their ESC byte: [36m
)
ANSI = re.compile(_SEQUENCE)
SPLIT_NUMBER = re.compile(rb"[\d.](?:" + _ESC + rb"?\[[\d;]*m)+\d")
"""A colour change inside a number. A word-diff of two logs puts the two values side by side like this; no log does."""

_MAY_HOLD_ANSI = re.compile(rb"[\x1b\0]|\[\d{1,3}(?:;\d{1,3})*m|\^\[\[|\\u001b|\\x1b|\\033|\xe2\x90\x9b")

PREFIX_BYTES = 400
"""How far back from a record its prefix is looked for; nested prefixes beyond that are cut off."""

_RANK = re.compile(
    r"\[rank(?P<torchrun>\d+)\]"
    r"|\[default(?P<default>\d+)\]:"
    r"|\[trainer(?P<global>\d+)\\?\|\d+\]"
    r"|\[rank-(?P<primus>\d+)/\d+\]"
    r"|^\[\d+,(?P<mpi>\d+)\]<std(?:out|err)>"
    r"|^\s*(?P<srun>\d{1,5}): "
    r"|(?:^|lines\] |\s)\[(?P<monarch>\d{1,5})\] \[titan\]"
)
_TIME = re.compile(
    r"(?P<y>\d{4})-?(?P<mo>\d\d)-?(?P<d>\d\d)[ T](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<frac>\d{1,9}))?(?!\d)"
)


def clean(raw: bytes) -> bytes:
    """``raw`` without colour codes, other escape sequences and NUL bytes."""
    if _MAY_HOLD_ANSI.search(raw) is None:
        return raw
    return ANSI.sub(b"", raw.replace(b"\0", b""))


def decode(text: bytes) -> str:
    """``text`` as a string; bytes that are not UTF-8 become U+FFFD."""
    return text.decode("utf-8", "replace")


def prefix_facts(prefix: bytes) -> tuple[int | None, str | None]:
    """Rank and time that stand before a record, each ``None`` where the prefix does not say.

    The rank nearest to the start is the launcher's; of several time stamps the last is the program's own, since shippers
    put theirs in front.
    """
    text = decode(prefix[-PREFIX_BYTES:])
    found = _RANK.search(text)
    rank = int(found.group(found.lastgroup or 0)) if found else None
    if found and found.lastgroup == "srun":  # a more exact name may follow: "0: [rank12]:"
        better = re.search(r"\[rank(\d+)\]", text)
        rank = int(better.group(1)) if better else rank
    stamp = None
    for stamp in _TIME.finditer(text):
        pass
    if stamp is None:
        return rank, None
    fraction = f".{stamp['frac']}" if stamp["frac"] else ""
    return rank, f"{stamp['y']}-{stamp['mo']}-{stamp['d']}T{stamp['clock']}{fraction}"
