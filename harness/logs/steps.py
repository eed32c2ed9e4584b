"""Step lines: every way a training step has been printed, as a table, and the reading of one record.

A record is a lead (which gives the step number) and columns ``label: value``. The columns may come in any order and some
may be missing, so one walk over the columns reads S1 to S12 and the forks; ``CANONICAL`` is the same thing for the usual
order, as one expression, for speed. Numbers are read strictly: a value that is not a whole number followed by what may
follow a number makes the record rejected, or, where it is the cut end of a line, null with the flag "cut".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_INT = rb"\d{1,3}(?:,\d{3})+|\d+"
_NUMBER = rb"(?:[-+]?(?:(?:" + _INT + rb")(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?inf|nan)"
_AFTER = rb"(?=$|[\s|*`\"'\\<(\]});]|[,.](?:\s|[\"'\\])|\.\.\.)"

VALUE = {
    "number": re.compile(rb"\[?(" + _NUMBER + rb")\]?" + _AFTER),
    "gib": re.compile(rb"(" + _NUMBER + rb")\s?GiB(?:\((" + _NUMBER + rb")%\)|(?=$|\s)|(\(.{0,12}$))"),
    "percent": re.compile(rb"(" + _NUMBER + rb")\s?%"),
    "mfu": re.compile(rb"(?:(" + _NUMBER + rb")\s?%|(N/A)" + _AFTER + rb")"),
    "rate": re.compile(rb"(" + _NUMBER + rb")(?: tokens/sec)?" + _AFTER),
}

COLUMNS: dict[bytes, tuple[str, str]] = {
    # label              field          value      first and last seen in torchtitan
    b"loss": ("loss", "number"),  #                 2024-02 ..
    b"current loss": ("loss", "number"),  #         2024-01 .. 2024-02 (S1, S2)
    b"Loss": ("loss", "number"),  #                 forks ("Step 1/20 | Loss: ...")
    b"global_avg_loss": ("loss", "number"),  #      forks (key=value)
    b"grad_norm": ("grad_norm", "number"),  #       2025-06 .. (S9)
    b"memory": ("memory_gib", "gib"),  #            2024-03 .. (S5)
    b"peak_memory": ("memory_pct", "percent"),  #   2024-03 (S4)
    b"wps": ("tps", "number"),  #                   2024-03 .. 2024-11 (S4 to S6)
    b"tps": ("tps", "number"),  #                   2024-11 .. (S7)
    b"throughput(tps)": ("tps", "number"),  #       forks (key=value)
    b"Throughput": ("tps", "rate"),  #              forks
    b"tflops": ("tflops", "number"),  #             2025-02 .. (S8)
    b"mfu": ("mfu", "mfu"),  #                      2024-03 .. (S6)
    b"mfu(%)": ("mfu", "number"),  #                forks (key=value)
}

LEADS = (
    # name, expression for the lead, what the value may be separated by
    ("step: 10", re.compile(rb"step:\s*(\d{1,12})(?:/(\d+)\s*=\s*[\d.]+%)?(?=[\s,|]|$)")),
    ("step=10", re.compile(rb"\bstep=(\d{1,12})()(?=\s)(?=.{0,80}\bglobal_avg_loss=)")),
    ("Step 1/20 |", re.compile(rb"\bStep (\d{1,12})/(\d+) \|(?= Loss:)")),
)

CANONICAL = re.compile(
    rb"step:\s*(\d{1,12})\s+loss:\s*(-?\d+\.\d{4,5}|nan|-?inf)"
    rb"(?:\s+grad_norm:\s*(\d+\.\d{4}|nan|inf))?"
    rb"(?:\s+memory:\s*(-?\d+\.\d\d)GiB\((-?\d+\.\d\d|nan|inf)%\))?"
    rb"(?:\s+(?:tps|wps):\s*(\d{1,3}(?:,\d{3})*)(?=\s|$))?"
    rb"(?:\s+tflops:\s*(\d{1,3}(?:,\d{3})*\.\d\d)(?=\s|$))?"
    rb"(?:\s+mfu:\s*(?:(\d[\d,]*\.\d\d)%|(N/A)))?"
)
_FIELDS = ("loss", "grad_norm", "memory_gib", "memory_pct", "tps", "tflops", "mfu")

_LABEL = re.compile(rb"[\s|,;]*((?:current )?[A-Za-z][\w./()%-]{0,40})\s*[:=]\s*")
_STEP_LIKE = re.compile(rb"step:\s*(\S{1,24})\s+loss:\s*(\S{0,24})")
_HEADLESS = re.compile(rb"(?:^|\s)loss:\s*[-\d.nai]+f?\s+(?:grad_norm|memory|tps|wps):")
_CODE = re.compile(rb"[{}<>$%\"'=_A-Za-mo-z]")
_BEFORE = re.compile(rb"(?:^|[^\w])(\w+)[ \t]+$")
_PARTIAL = re.compile(
    rb"step:\s*(?:\d{1,12}\s*(?:l(?:o(?:s(?:s(?::\s*)?)?)?)?)?)?$"
    rb"|\s(?:loss|grad_norm|memory|tps|wps|tflops|mfu):\s*$|\s(?:g(?:r(?:a(?:d(?:_n?o?r?m?)?)?)?)?|m|me|mem|memo|memor|memory|t|tp|w|wp|tf|tfl|tflo|tflop|tflops|mf|mfu)$"
)

KIND_WORDS = {b"validate": "validate", b"validation": "validate", b"eval": "validate", b"final": "final"}


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
    """The column that stands last and has nothing behind it on the line ("" where something does): it may be cut."""
    decimals: int = 0
    """Digits after the point of the column that stands last."""
    complete: bool = False
    """Whether nothing more can follow; if not, the next line may go on."""


class Damaged(ValueError):
    """A step-like record that cannot be trusted; the message says why."""


def number(token: bytes) -> float | int:
    """A number as printed: thousands commas, scientific notation, inf and nan."""
    plain = token.replace(b",", b"")
    return int(plain) if plain.isdigit() else float(plain)


def read(text: bytes, start: int) -> Reading | None:
    """The record whose lead is at or after ``start`` in ``text``, ``None`` where there is no step line there.

    Raises ``Damaged`` for a record that looks like a step line and is not understood.
    """
    match = CANONICAL.match(text, start)
    if match is not None and (not text[match.end() :].strip()):
        return _canonical(text, match)
    for name, expression in LEADS:
        lead = expression.match(text, start)
        if lead is not None:
            return _walk(text, start, lead, name)
    like = _STEP_LIKE.match(text, start)
    if like is not None and not _CODE.match(like.group(1)):
        raise Damaged("the step number is not a whole number")
    return None


def _kind(text: bytes, start: int) -> str:
    before = _BEFORE.search(text, max(0, start - 24), start)
    if before is None:
        return "train"
    word = before.group(1)
    if word in KIND_WORDS:
        return KIND_WORDS[word]
    if word in (b"train", b"training", b"INFO"):
        return "train"
    raise Damaged(f"unknown kind of step line: {word.decode('ascii', 'replace')!r} stands before it")


def _canonical(text: bytes, match: re.Match[bytes]) -> Reading:
    groups = match.groups()
    values: dict[str, float | int | None] = {}
    last = ""
    for name, token in zip(_FIELDS, groups[1:8], strict=True):
        if token is not None:
            values[name] = number(token)
            last = name
    reading = Reading(_kind(text, match.start()), int(groups[0]), values, match.start(), match.end())
    if groups[8] is not None:
        reading.flags.append("mfu_na")
    reading.complete = groups[8] is not None or groups[7] is not None
    if not reading.complete and last in ("loss", "grad_norm", "tps", "tflops") and match.end() == len(text):
        reading.last, reading.decimals = last, 99
    return reading


def _walk(text: bytes, start: int, lead: re.Match[bytes], lead_name: str) -> Reading | None:
    """Read the columns after ``lead`` one by one."""
    step = int(lead.group(1))
    values: dict[str, float | int | None] = {}
    flags: list[str] = []
    extra: dict[str, Any] = {"total_steps": int(lead.group(2))} if lead.group(2) else {}
    position, last, latest, decimals, known = lead.end(), "", "", 0, 0
    while label := _LABEL.match(text, position):
        name = label.group(1)
        column = COLUMNS.get(name)
        if column is None:
            value = VALUE["number"].match(text, label.end())
            if value is None or name.lower().endswith(b"step"):
                break
            extra[name.decode()] = number(value.group(1))
            position, last, latest = value.end(), "", ""
            continue
        target, shape = column
        value = VALUE[shape].match(text, label.end())
        if value is None:
            token = text[label.end() : label.end() + 24].split(None, 1)[:1]
            rest = text[label.end() :].strip()
            if known and not _more(rest):  # the end of the line, or of what is left of it
                flags.append("cut" if rest else "open")
                position = len(text.rstrip())
                last = ""
                break
            if not known and (not rest or _CODE.match(rest)):
                return None
            shown = token[0].decode("utf-8", "replace") if token else ""
            raise Damaged(f"{name.decode()}: {shown!r} is not a value")
        if target in values:
            raise Damaged(f"the column {name.decode()} is there twice")
        if shape == "gib":
            values["memory_gib"] = number(value.group(1))
            values["memory_pct"] = number(value.group(2)) if value.group(2) else None
            if value.group(3):
                flags.append("cut")
        elif shape == "mfu" and value.group(2):
            values["mfu"] = None
            flags.append("mfu_na")
        else:
            values[target] = number(value.group(1))
        known += 1
        decimals = _decimals(value.group(1))
        position, latest = value.end(), target
        last = target if shape in ("number", "rate") else ""
    if "loss" not in values:
        if known:
            raise Damaged("it has no loss")
        return None
    rest = text[position : position + 40].strip()
    if rest[:1].isdigit() or rest[:2] in (b"-", b"."):
        raise Damaged(f"a second value {rest[:16].decode('utf-8', 'replace')!r} follows the last column")
    if latest == "loss" and decimals < 4 and lead_name == "step: 10":
        raise Damaged("it ends in the loss, with fewer decimals than torchtitan prints")
    if position < len(text):
        last = ""
    kind = _kind(text, start) if lead_name == "step: 10" else "train"
    reading = Reading(kind, step, values, start, position, flags, extra, last, decimals)
    reading.complete = "mfu" in values or lead_name != "step: 10" or position < len(text.rstrip())
    return reading


def _decimals(token: bytes | None) -> int:
    """Digits after the point; inf and nan count as complete."""
    if not token or token[-1:].isalpha():
        return 99
    point = token.rfind(b".")
    return len(token) - point - 1 if point >= 0 else 0


def _more(rest: bytes) -> bool:
    """Whether anything but one broken token is left."""
    return len(rest.split(None, 1)) > 1


def could_continue(text: bytes) -> bool:
    """Whether the end of ``text`` is inside a record, so that the next line may hold the rest of it."""
    return _PARTIAL.search(text, max(0, len(text) - 200)) is not None


def headless(text: bytes) -> bool:
    """Whether ``text`` holds the columns of a step line but not its step."""
    return _HEADLESS.search(text) is not None
