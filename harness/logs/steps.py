"""Reading one record of a step line with the tables of ``columns``.

Numbers are read strictly. A column whose value is not a number followed by what may follow one makes the record
rejected; only at the very end of a line, where lines get cut, is the last value given up instead (null, with the flag
"cut").
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from harness.logs.columns import CANONICAL, CANONICAL_COLUMNS, COLUMNS, DECIMALS, LEADS, VALUES
from harness.logs.text import STANDARD_PREFIX

KIND_WORDS = {
    b"": "train", b"train": "train", b"training": "train",
    b"validate": "validate", b"validation": "validate", b"eval": "validate",
    b"final": "final",
}  # fmt: skip
"""What stands before ``step:``. "final step:" (a fork's closing average) is no step: it becomes an event."""

_LABEL = re.compile(rb"[\s|,;]*+((?:current )?[A-Za-z][\w./()%-]{0,40})\s*[:=]\s*")
_STEP_LIKE = re.compile(rb"step:\s*(\S{1,24})\s+loss:\s*\S")
_HEADLESS = re.compile(rb"(?:^|\s)loss:\s*[-\d.naif]{1,24}\s+(?:grad_norm|memory|tps|wps):")
_CODE = re.compile(rb"[{}<>$%\"'=]|\w*[(\[{]")
"""What stands for a value in source code and in prose."""
_BEFORE = re.compile(rb"(?:^|[^\w])(\w+)[ \t]+\Z|([\w-]+)\Z")
_LABEL_WORD = re.compile(rb"[A-Z]+|rank_?\d+")
"""A logger's level or a rank, which may stand before a step line as well: "INFO step: 1"."""
_STUMP = re.compile(rb"step:\s*\d{1,12}\s+l(?:o|os|oss|oss:\s*)?\Z")
_COULD_GO_ON = re.compile(
    rb"step:\s*(?:\d{1,12}\s*(?:l|lo|los|loss|loss:\s*)?)?\Z"  # cut before the loss
    rb"|\s(?:loss|grad_norm|memory|tps|wps|tflops|mfu):\s*[-\d.,]*\Z"  # cut before or in a value
    rb"|\s[a-z_]{1,9}\Z"  # cut in a label
)


class Damaged(ValueError):
    """A step-like record that cannot be trusted; the message says why."""


@dataclass(slots=True)
class Reading:
    """One record as read, before ranks and segments are considered."""

    kind: str
    step: int
    values: dict[str, float | int | None]
    start: int
    end: int
    flags: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    last: str = ""
    """The column with nothing behind it on the line ("" where something delimits it): it may be cut."""
    decimals: int = 99
    """Digits after the point of that column."""
    complete: bool = False
    """Whether nothing more can follow; if not, the next line may hold the rest."""
    own: bool = True
    """Whether this is torchtitan's form of line and not a fork's."""


def number(token: bytes) -> float | int:
    """A number as printed: thousands commas, scientific notation, inf and nan."""
    plain = token.replace(b",", b"") if b"," in token else token
    return int(plain) if plain.isdigit() else float(plain)


def read(text: bytes, start: int) -> Reading | None:
    """The record whose lead stands at ``start`` in ``text`` (clean, one line), ``None`` where that is no step line.

    Raises ``Damaged`` for a record that looks like a step line and is not understood.
    """
    match = CANONICAL.match(text, start)
    if match is not None and not text[match.end() :].strip():
        return canonical(text, match)
    for name, expression in LEADS.items():
        lead = expression.match(text, start)
        if lead is not None:
            return _walk(text, start, lead, name)
    like = _STEP_LIKE.match(text, start)
    if like is not None and not _CODE.match(like.group(1)) and any(chr(byte).isdigit() for byte in like.group(1)):
        raise Damaged("the step number is not a whole number")
    return None


def kind_of(text: bytes, start: int) -> str:
    """ "train", "validate" or "final", by the word that stands before the lead at ``start``."""
    before = _BEFORE.search(text, max(0, start - 24), start)
    word = (before.group(1) or before.group(2)) if before is not None else b""
    glued = before is not None and before.group(1) is None
    kind = None if glued else KIND_WORDS.get(word.lower())
    if kind is None and (glued or not _LABEL_WORD.fullmatch(word)):
        raise Damaged(f"an unknown kind of step line: {word.decode('ascii', 'replace')!r} stands before it")
    if before is None and text[:start].rstrip().endswith(b"|") and text.lstrip().startswith(b"|"):
        raise Damaged("it stands in a table, not in a log")
    return kind or "train"


def canonical(text: bytes, match: re.Match[bytes]) -> Reading:
    """The reading of a ``CANONICAL`` match that reaches to the end of ``text``."""
    groups = match.groups()
    values = {
        name: number(token) for name, token in zip(CANONICAL_COLUMNS, groups[1:8], strict=True) if token is not None
    }
    reading = Reading(kind_of(text, match.start()), int(groups[0]), values, match.start(), match.end())
    if groups[8] is not None:
        reading.flags.append("mfu_na")
    reading.complete = groups[8] is not None or groups[7] is not None
    last = next(reversed(values))
    if not reading.complete and last != "memory_pct" and match.end() == len(text):
        reading.last = last
    return reading


def _walk(text: bytes, start: int, lead: re.Match[bytes], lead_name: str) -> Reading | None:
    """Read the columns behind ``lead`` one by one."""
    values: dict[str, float | int | None] = {}
    reading = Reading("train", int(lead.group(1)), values, start, lead.end())
    if lead.group(2):
        reading.extra["total_steps"] = int(lead.group(2))
    position, latest, decimals = lead.end(), "", 99
    while label := _LABEL.match(text, position):
        name = label.group(1)
        if name not in COLUMNS:
            position = _unknown(text, label, reading)
            if position < 0:
                position = label.start()
                break
            latest = ""
            continue
        target, shape = COLUMNS[name]
        value = VALUES[shape].match(text, label.end())
        if value is None:
            rest = text[label.end() :].split(None, 1)
            if values and len(rest) < 2:  # the line ends in this value
                reading.flags += ["cut"] if rest else []
                position, latest = len(text), ""
                break
            if not values and (not rest or (_CODE.match(rest[0]) and not rest[0].startswith((b"[-", b"{+")))):
                return None  # a format string, or prose; but [-8.1-]{+8.2+} is a word-diff
            shown = rest[0][:16].decode("utf-8", "replace") if rest else ""
            raise Damaged(f"{name.decode()}: {shown!r} is not a value")
        if target in values:
            raise Damaged(f"the column {name.decode()} is there twice")
        _take(reading, target, shape, value)
        position, latest = value.end(), target
        decimals = _decimals(value.group(1))
    if "loss" not in values:
        if values:
            raise Damaged("it has no loss")
        return None
    reading.end, reading.decimals = position, decimals
    if position == len(text) and text[-1:] in b"0123456789.":  # "inf", "nan" and what ends in a unit are no stumps
        reading.last = latest
    own = lead_name == "step: 10"
    _check_end(reading, text[position:], latest, own)
    reading.kind = kind_of(text, start) if own else "train"
    return reading


def _check_end(reading: Reading, rest: bytes, latest: str, own: bool) -> None:
    """Whether the record is whole, by what stands behind its columns; ``own`` says that it is torchtitan's form."""
    rest = rest[:40].strip()
    if re.match(rb"[-+.]?\d", rest):
        raise Damaged(f"a second value {rest[:16].decode('utf-8', 'replace')!r} follows the last column")
    if own and latest == "loss" and reading.decimals < DECIMALS["loss"]:
        raise Damaged("it ends in the loss, with fewer decimals than torchtitan prints")
    cut_label = any(label.startswith(rest) for label in COLUMNS) if rest else False
    if cut_label:
        reading.flags.append("cut")
    reading.complete = not own or "mfu" in reading.values or (bool(rest) and not cut_label)
    reading.own = own


def _unknown(text: bytes, label: re.Match[bytes], reading: Reading) -> int:
    """Step over a column that is not torchtitan's (numbers are kept as extras); -1 where the record ends before it."""
    name = label.group(1)
    if name.lower().endswith(b"step"):  # the next record, or prose
        return -1
    value = VALUES["number"].match(text, label.end())
    if value is not None:
        reading.extra[name.decode()] = number(value.group(1))
        return value.end()
    token = re.compile(rb"[^\s:]++(?=\s|\Z)").match(text, label.end())
    return token.end() if token is not None else -1


def _take(reading: Reading, target: str, shape: str, value: re.Match[bytes]) -> None:
    if shape == "memory":
        reading.values["memory_gib"] = number(value.group(1))
        if value.group(2):
            reading.values["memory_pct"] = number(value.group(2))
        if value.group(3):
            reading.flags.append("cut")
    elif shape == "mfu" and value.group(2):
        reading.values["mfu"] = None
        reading.flags.append("mfu_na")
    else:
        reading.values[target] = number(value.group(1))


def _decimals(token: bytes | None) -> int:
    """Digits after the point; of inf, nan and scientific notation as many as one may want."""
    if not token or not token.replace(b",", b"").replace(b".", b"").lstrip(b"+-").isdigit():
        return 99
    point = token.rfind(b".")
    return len(token) - point - 1 if point >= 0 else 0


def could_go_on(text: bytes) -> bool:
    """Whether the end of ``text`` is inside a record, so that the next line may hold the rest of it."""
    return _COULD_GO_ON.search(text, max(0, len(text) - 200)) is not None


def is_stump(text: bytes, start: int) -> bool:
    """Whether the record at ``start``, of which nothing could be read, begins a step line and is no prose."""
    if _STUMP.match(text, start) is not None:
        return True
    prefix = STANDARD_PREFIX.match(text)
    return prefix is not None and not text[prefix.end() : start].strip()


def headless(text: bytes) -> bool:
    """Whether ``text`` holds the columns of a step line but not its step."""
    return _HEADLESS.search(text) is not None
