"""From lines with needles to events: which shapes to try, and what stands before the message."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

from harness.logs.events import TITAN, Shape
from harness.logs.failures import FAILURES
from harness.logs.records import Event
from harness.logs.text import PREFIX_BYTES, STANDARD_PREFIX, clean, decode, iso, prefix_facts

SHAPES: tuple[Shape, ...] = (*TITAN, *FAILURES)

MOST = 2000
"""Characters of a message that are looked at, so that no expression can take long."""
_OTHER_PREFIX = re.compile(
    r"\s*(?:\d{1,6}: )?(?:\[(?!GC\]|Override\]|pilot\]|NCC_|c10d\])[^\]\n]{1,48}\](?:<std(?:out|err)>)?:?\s?)*+\s*"
    r"(?:\[titan\] )?(?:\d{4}-\d\d-\d\d[T ][\d:]{8}(?:[.,]\d+)?Z? (?:- )?)?(?:(?:[\w.]+ - )?[A-Z]{4,8} - )?"
)
"""What launchers, loggers and shippers put before a message, as far as it is known."""


@cache
def event_needles() -> tuple[bytes, ...]:
    """What to look for in a log, each once."""
    return tuple(dict.fromkeys(shape.needle.encode() for shape in SHAPES))


@cache
def _hidden_by(index: int) -> tuple[Shape, ...]:
    """The shapes to try where needle ``index`` was found: its own, and those whose needle it may have hidden.

    The search reports hits that do not overlap, so a needle inside another one, or running into its end, is not seen.
    """
    needle = event_needles()[index]
    return tuple(shape for shape in SHAPES if _may_hide(needle, shape.needle.encode()))


@lru_cache(maxsize=1024)
def _shapes(indexes: tuple[int, ...]) -> tuple[Shape, ...]:
    """The shapes to try where these needles were found, in the order of the table."""
    several = {shape for index in set(indexes) for shape in _hidden_by(index)}
    return tuple(shape for shape in SHAPES if shape in several)


def _may_hide(found: bytes, other: bytes) -> bool:
    return other in found or any(found.endswith(other[:size]) for size in range(2, min(len(found), len(other))))


def _read(shape: Shape, message: str) -> dict[str, Any] | None:
    """``data`` of the event in ``message``; of an over-long one only what is near the needle is looked at."""
    at = message.find(shape.needle)
    if at < 0:
        return None
    return shape.read(message if len(message) <= MOST else message[max(0, at - MOST // 4) : at + MOST])


class Announcer:
    """Turns lines into events. It remembers one thing: which rank torchrun's failure summary is talking about."""

    def __init__(self) -> None:
        self._child: dict[str, int] | None = None

    def events(self, line: bytes, found: list[int], number: int) -> list[Event]:
        """The events in ``line``, which has this number and holds the needles ``found``, by their places."""
        standard = STANDARD_PREFIX.match(line)
        if standard is not None:
            label, stamp = standard.groups()
            rank, time = int(label) if label is not None else None, iso(stamp)
            message = decode(clean(line[standard.end() :]))
        else:
            text = clean(line)
            rank, time = prefix_facts(text[:PREFIX_BYTES])
            shown = decode(text)
            prefix = _OTHER_PREFIX.match(shown)
            message = shown[prefix.end() :] if prefix is not None else shown
        indented = line[:1].isspace()
        events: list[Event] = []
        for shape in _shapes(tuple(found)):
            data = _read(shape, message)
            if data is None or (events and any(event.kind == shape.kind for event in events)):
                continue
            if shape.kind == "child_rank":
                self._child = data
            else:
                events.append(self._event(shape.kind, data, indented, number, rank, time))
        return events

    def _event(
        self, kind: str, data: dict[str, Any], indented: bool, line: int, rank: int | None, time: str | None
    ) -> Event:
        if kind == "child_exit" and self._child is not None:
            data.update(self._child)
        if kind in ("exception", "oom") and rank is None and self._child is not None and indented:
            rank = self._child["child_rank"]  # a traceback quoted, indented, in the summary
        if kind == "model_memory" and not data.get("gib", 0) > 0:
            data["gib"] = data["percent"] = None
        return Event(kind, line, time, rank, 0, data)
