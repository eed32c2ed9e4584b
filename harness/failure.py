"""Why a training failed, in one line: from torchrun's error files, the log's exceptions and the exit code."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.logs import Event
from harness.progress import printable
from harness.rundir import tail
from harness.watch import End

RANK_LOGS = "ranks"
MAX_REASON = 300
FRAME = " \t│─╭╮╰╯"


@dataclass(frozen=True)
class Failure:
    """``reason`` is one line; ``detail`` is a traceback where one was found."""

    reason: str
    detail: str = ""


def explain(end: End, events: Sequence[Event], rank_logs: Path) -> Failure:
    """The first failing rank and its error, from the best source there is.

    A rank that dies by a signal writes no error file, while the others fail for want of it and do: so a signal comes
    first, then the earliest error file, then a rank that only exited, then what the log says.
    """
    error = first_error_file(rank_logs)
    if end.cause:
        return Failure(end.cause, error.detail if error else "")
    exits = [event.data for event in events if event.kind == "child_failed" and event.data.get("exitcode") is not None]
    killed = next((data for data in exits if int(data["exitcode"]) < 0), None)
    if killed is not None:
        return Failure(f"rank {killed.get('local_rank')}: {exit_text(int(killed['exitcode']))}")
    if error is not None:
        return error
    if exits:
        rank = exits[0].get("local_rank")
        said = last_words(rank_logs, rank)
        return Failure(shorten(f"rank {rank}: {exit_text(int(exits[0]['exitcode']))}{': ' if said else ''}{said}"))
    for event in events:
        if event.kind == "exception":
            rank = f"rank {event.rank}: " if event.rank is not None else ""
            return Failure(shorten(f"{rank}{event.data.get('type')}: {event.data.get('message')}"))
    return Failure(f"torchrun: {exit_text(end.exit_code)}")


def first_error_file(rank_logs: Path) -> Failure | None:
    """The earliest of the ``error.json`` files that torchrun's ``record`` wrote, one per failed rank."""
    errors = [(content, file) for file in rank_logs.glob("**/error.json") if (content := _read(file)) is not None]
    if not errors:
        return None
    content, file = min(errors, key=lambda pair: float(_extra(pair[0]).get("timestamp", "inf")))
    message = content["message"] if isinstance(content["message"], str) else content["message"].get("message", "")
    detail = str(_extra(content).get("py_callstack", ""))
    return Failure(shorten(f"rank {file.parent.name}: {message}"), detail)


def last_words(rank_logs: Path, rank: object) -> str:
    """What a rank that exited without an exception printed last; of a framed message its first line."""
    text = "\n".join(tail(file, 40, 64_000) for file in sorted(rank_logs.glob(f"**/{rank}/std*.log"), reverse=True))
    lines = [line.strip(FRAME) for line in text.splitlines()]
    opened = next((place for place, line in enumerate(text.splitlines()) if line.startswith("╭")), None)
    lines = lines[opened + 1 :] if opened is not None else lines[::-1]
    return next((line for line in lines if line), "")


def exit_text(code: int | None) -> str:
    """``-9`` as "killed by SIGKILL"."""
    if code is None:
        return "did not end"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def shorten(text: str) -> str:
    """One printable line of at most ``MAX_REASON`` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 1] + "…"


def _read(file: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and "message" in content else None


def _extra(content: dict[str, Any]) -> dict[str, Any]:
    message = content["message"]
    return message.get("extraInfo", {}) if isinstance(message, dict) else {}
