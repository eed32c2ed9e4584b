"""Why a training failed, in one line: from torchrun's error files, the log's exceptions and the exit code."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.logs import Event
from harness.out_of_memory import KernelKills, OutOfMemory, out_of_memory
from harness.privacy import redact_text
from harness.progress import printable
from harness.streams import tail
from harness.watch import End

RANK_LOGS = "ranks"
MAX_REASON = 300
_SUMMARY = re.compile(r"^ +rank +: \d+ \(local_rank: (\d+)\)\n +exitcode +: (-?\d+) \(pid: (\d+)\)", re.M)
FRAME = " \t│─╭╮╰╯"


@dataclass(frozen=True)
class Failure:
    """``reason`` is one line; ``detail`` is a traceback where one was found."""

    reason: str
    detail: str = ""
    memory: OutOfMemory | None = None
    """Set where memory ran out."""


def explain(end: End, events: Sequence[Event], rank_logs: Path, kills: KernelKills | None = None) -> Failure:
    """The first failing rank and its error, from the best source there is.

    A rank that dies by a signal writes no error file, while the others fail for want of it and do: so a signal comes
    first (not SIGTERM, by which torchrun ends the others), then the earliest error file, then a rank that only exited,
    then what the log says.

    Args:
        kills: what the kernel killed for want of memory during the run.
    """
    error = first_error_file(rank_logs)
    if end.cause:
        return Failure(end.cause, error.detail if error else "")
    exits = exit_codes(events, log_beside(rank_logs))
    killed = [exited for exited in exits if exited.code < 0 and exited.code != -signal.SIGTERM]
    if killed:
        evidence = kills.evidence(killed[0].pid) if kills and killed[0].code == -signal.SIGKILL else ""
        return _with_memory(f"rank {killed[0].rank}", exit_text(killed[0].code), rank_logs, evidence)
    if error is not None:
        return error
    if exits:
        first = min(exits, key=lambda exited: exited.code == -signal.SIGTERM)
        said = last_words(rank_logs, first.rank) if first.code > 0 else ""
        text = f"{exit_text(first.code)}{': ' if said else ''}{said}"
        return _with_memory(f"rank {first.rank}", text, rank_logs)
    for event in events:
        if event.kind == "exception":
            rank = f"rank {event.rank}" if event.rank is not None else "a rank"
            return _with_memory(rank, f"{event.data.get('type')}: {event.data.get('message')}", rank_logs)
    return _with_memory("torchrun", exit_text(end.exit_code), rank_logs)


def _with_memory(who: str, text: str, rank_logs: Path, kernel_said: str = "") -> Failure:
    """A failure in one line; whether it was want of memory is asked of the kernel, that line, the rank's last words."""
    if kernel_said:
        memory = OutOfMemory("host", kernel_said)
        return Failure(shorten(f"{who}: {memory.said(text)}"), memory=memory)
    memory = out_of_memory(text) or out_of_memory("\n".join(rank_log(rank_logs, who.removeprefix("rank "))))
    return Failure(shorten(f"{who}: {memory.said(text) if memory else text}"), memory=memory)


@dataclass(frozen=True)
class Exited:
    """A rank that ended other than well; ``code`` is negative for a signal."""

    rank: int
    code: int
    pid: int | None = None


def exit_codes(events: Sequence[Event], log: Path) -> list[Exited]:
    """What torchrun says of its ranks: a line as it sees one end, and a summary of all at its own end."""
    seen = [event.data for event in events if event.kind == "child_failed"]
    exits = [Exited(data["local_rank"], data["exitcode"], data.get("pid")) for data in seen if "exitcode" in data]
    summary = "\n".join(line for line in tail(log, 200, 64_000).splitlines() if not line.startswith("[rank"))
    return exits + [Exited(int(rank), int(code), int(pid)) for rank, code, pid in _SUMMARY.findall(summary)]


def first_error_file(rank_logs: Path) -> Failure | None:
    """The earliest of the ``error.json`` files that torchrun's ``record`` wrote, one per failed rank."""
    errors = [(content, file) for file in rank_logs.glob("**/error.json") if (content := _read(file)) is not None]
    if not errors:
        return None
    content, file = min(errors, key=lambda pair: float(_extra(pair[0]).get("timestamp", "inf")))
    message = content["message"] if isinstance(content["message"], str) else content["message"].get("message", "")
    memory, detail = out_of_memory(str(message)), redact_text(str(_extra(content).get("py_callstack", "")))
    reason = f"rank {file.parent.name}: {memory.said(str(message)) if memory else message}"
    return Failure(shorten(reason), detail, memory)


def error_time(rank_logs: Path) -> float | None:
    """Unix time of the earliest error that a rank left in a file; None if none did."""
    errors = (content for file in rank_logs.glob("**/error.json") if (content := _read(file)) is not None)
    return min((float(_extra(content).get("timestamp", "inf")) for content in errors), default=None)


def log_beside(rank_logs: Path) -> Path:
    """The log of the node whose ranks log to ``rank_logs``: train.log, of other nodes train.node1.log, ..."""
    return rank_logs.parent / f"train{rank_logs.suffix}.log"


def last_words(rank_logs: Path, rank: object) -> str:
    """What a rank that exited without an exception printed last; of a framed message its first line."""
    text = rank_log(rank_logs, rank)
    lines = [line.strip(FRAME) for line in text]
    opened = next((place for place, line in enumerate(text) if line.startswith("╭")), None)
    lines = lines[opened + 1 :] if opened is not None else lines[::-1]
    return next((line for line in lines if line), "")


def rank_log(rank_logs: Path, rank: object) -> list[str]:
    """The last lines of what a rank printed, without its prefix: rank 0 prints to the log itself, others beside it."""
    if not str(rank).isdigit():
        return []
    files = sorted(rank_logs.glob(f"*/**/{rank}/std*.log"), reverse=True)
    files.append(log_beside(rank_logs) if str(rank) == "0" else rank_logs / f"{rank}.log")
    lines = [line for file in files for line in tail(file, 60, 64_000).splitlines()]
    own = [line for line in lines if line.startswith("[rank0]:")] if str(rank) == "0" else []
    return [line.removeprefix("[rank0]:") for line in own] or lines


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
    line = " ".join(printable(redact_text(text)).split())
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
