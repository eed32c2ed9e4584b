"""From lines with needles to events: which shapes to try, and what stands before the message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from harness.logs.events import TITAN, Shape
from harness.logs.failures import FAILURES
from harness.logs.records import Event
from harness.logs.text import PREFIX_BYTES, STANDARD_PREFIX, decode, iso, prefix_facts

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
def _shapes(index: int) -> tuple[Shape, ...]:
    """The shapes to try where needle ``index`` was found: its own, and those whose needle it may have hidden.

    The search reports hits that do not overlap, so a needle inside another one, or running into its end, is not seen.
    """
    needle = event_needles()[index]
    return tuple(shape for shape in SHAPES if _may_hide(needle, shape.needle.encode()))


def _may_hide(found: bytes, other: bytes) -> bool:
    return other in found or any(found.endswith(other[:size]) for size in range(1, min(len(found), len(other))))


def _read(shape: Shape, message: str) -> dict[str, Any] | None:
    """``data`` of the event in ``message``; of an over-long one only what is near the needle is looked at."""
    at = message.find(shape.needle)
    if at < 0:
        return None
    return shape.read(message if len(message) <= MOST else message[max(0, at - MOST // 4) : at + MOST])


class Announcer:
    """Turns lines into events. It remembers one thing: which rank torchrun's failure summary is talking about."""

    def __init__(self, first: int) -> None:
        """``first`` is the number of the first of ``event_needles`` in a search that has others before them."""
        self._first = first
        self._child: dict[str, int] | None = None

    def events(self, text: bytes, found: Sequence[int], line: int) -> list[Event]:
        """The events in ``text``, a clean line that holds the needles ``found``."""
        standard = STANDARD_PREFIX.match(text)
        if standard is not None:
            label, stamp = standard.groups()
            rank, time = int(label) if label is not None else None, iso(stamp)
            message = decode(text[standard.end() :])
        else:
            rank, time = prefix_facts(text[:PREFIX_BYTES])
            shown = decode(text)
            prefix = _OTHER_PREFIX.match(shown)
            message = shown[prefix.end() :] if prefix is not None else shown
        shapes = _shapes(found[0] - self._first)
        if len(found) > 1:
            several = {shape for number in found for shape in _shapes(number - self._first)}
            shapes = tuple(shape for shape in SHAPES if shape in several)
        events: list[Event] = []
        for shape in shapes:
            data = _read(shape, message)
            if data is None or (events and any(event.kind == shape.kind for event in events)):
                continue
            if shape.kind == "child_rank":
                self._child = data
            else:
                events.append(self._event(shape.kind, data, text, line, rank, time))
        return events

    def _event(
        self,
        kind: str,
        data: dict,
        text: bytes,
        line: int,
        rank: int | None,
        time: str | None,
    ) -> Event:
        if kind == "child_exit" and self._child is not None:
            data.update(self._child)
        if kind in ("exception", "oom") and rank is None and self._child is not None and text[:1].isspace():
            rank = self._child["child_rank"]  # a traceback quoted, indented, in the summary
        if kind == "model_memory" and not data.get("gib", 0) > 0:
            data["gib"] = data["percent"] = None
        return Event(kind, line, time, rank, 0, data)
