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
from harness.watch import End

RANK_LOGS = "ranks"
MAX_REASON = 300


@dataclass(frozen=True)
class Failure:
    """``reason`` is one line; ``detail`` is a traceback where one was found."""

    reason: str
    detail: str = ""


def explain(end: End, events: Sequence[Event], rank_logs: Path) -> Failure:
    """The first failing rank and its error, from the best source there is."""
    first = first_error_file(rank_logs)
    if end.cause:
        return Failure(end.cause, first.detail if first else "")
    if first is not None:
        return first
    for event in events:
        if event.kind == "exception":
            rank = f"rank {event.rank}: " if event.rank is not None else ""
            return Failure(shorten(f"{rank}{event.data.get('type')}: {event.data.get('message')}"))
    for event in events:
        if event.kind == "child_failed" and event.data.get("exitcode") is not None:
            return Failure(shorten(f"rank {event.data.get('rank')}: {exit_text(int(event.data['exitcode']))}"))
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
