"""The run directory: the single source of truth about one pilot.

Documents (``status.json``, ``summary.json``, ...) are replaced atomically. Streams (``rows.jsonl``, ...) are only ever
appended to, one JSON object per line, and a torn last line (a writer killed in mid-write) is tolerated on reading.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.streams import AppendOnly, GrowingJsonLines, JsonLines, read_jsonl, tail, to_float, to_jsonable

__all__ = ["AppendOnly", "GrowingJsonLines", "JsonLines", "RunDir", "Status", "find_runs", "own_status", "to_float"]

CONFIG, MANIFEST, STATUS = "config.yaml", "manifest.json", "status.json"
SUMMARY, CHECKS, SENT = "summary.json", "checks.json", "mlflow.json"
ROWS, EVENTS, SAMPLES, LOG = "rows.jsonl", "events.jsonl", "samples.jsonl", "train.log"

RUNNING, FINISHED, FAILED, KILLED = "running", "finished", "failed", "killed"


def now() -> str:
    """The current time as ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, kw_only=True)
class Status:
    """What became of a run. ``pid`` and ``pid_started`` identify the recording process on ``host``."""

    state: str
    reason: str = ""
    phase: str = ""
    started: str = ""
    ended: str = ""
    exit_code: int | None = None
    host: str = ""
    pid: int = 0
    pid_started: float = 0.0
    attempt: int = 1
    """Counts the starts of a run whose Slurm job was requeued."""
    job: str = ""
    """Id of the Slurm job, if it is one."""


class RunDir:
    """One run's directory; reading never raises for a file that is absent or torn."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, root: Path, experiment: str, name: str) -> RunDir:
        """Make ``root/experiment/<UTC time>-<name>-<random>``; the random part keeps simultaneous starts apart."""
        while True:
            stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
            path = root / experiment / f"{stamp}-{name}-{secrets.token_hex(3)}"
            with contextlib.suppress(FileExistsError):
                path.mkdir(parents=True)
                return cls(path)

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def experiment(self) -> str:
        return self.path.parent.name

    def file(self, name: str) -> Path:
        return self.path / name

    # -- documents ---------------------------------------------------------------------------------------------

    def write_text(self, name: str, text: str) -> None:
        """Replace a document atomically: readers see the old or the new text, never half of one."""
        path = self.file(name)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def write_json(self, name: str, value: Any) -> None:
        self.write_text(name, json.dumps(to_jsonable(value), allow_nan=False, indent=1, ensure_ascii=False) + "\n")

    def read_json(self, name: str, default: Any = None) -> Any:
        try:
            return json.loads(self.file(name).read_text(encoding="utf-8", errors="replace"))
        except (OSError, ValueError, RecursionError):
            return default

    def config(self) -> dict[str, Any]:
        """The resolved configuration as plain dictionaries."""
        import yaml

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            config = yaml.load(self.file(CONFIG).read_text(encoding="utf-8"), Loader=loader)
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            return {}
        return config if isinstance(config, dict) else {}

    def manifest(self) -> dict[str, Any]:
        return self._object(MANIFEST)

    def summary(self) -> dict[str, Any]:
        return self._object(SUMMARY)

    def checks(self) -> list[dict[str, Any]]:
        checks = self.read_json(CHECKS, [])
        return [check for check in checks if isinstance(check, dict)] if isinstance(checks, list) else []

    def sent(self) -> dict[str, Any]:
        return self._object(SENT)

    def _object(self, name: str) -> dict[str, Any]:
        """A document that may come from anywhere: whatever is no object counts as none."""
        value = self.read_json(name, {})
        return value if isinstance(value, dict) else {}

    def status(self) -> Status | None:
        """The recorded status, or None where there is none to read."""
        value = self.read_json(STATUS)
        if not isinstance(value, dict) or "state" not in value:
            return None
        return Status(**{key: item for key, item in value.items() if key in Status.__dataclass_fields__})

    def write_status(self, status: Status) -> None:
        self.write_json(STATUS, status)

    # -- streams -----------------------------------------------------------------------------------------------

    def rows(self) -> Iterator[dict[str, Any]]:
        return read_jsonl(self.file(ROWS))

    def events(self) -> Iterator[dict[str, Any]]:
        return read_jsonl(self.file(EVENTS))

    def samples(self) -> Iterator[dict[str, Any]]:
        return read_jsonl(self.file(SAMPLES))

    def log_files(self) -> list[Path]:
        """The log in order: parts that were set aside, compressed or about to be, then ``train.log``."""
        parts: dict[int, Path] = {}
        for part in sorted(self.path.glob(f"{LOG}.[0-9]*")):  # of a part with and without .zst, the compressed one
            number = part.name.removeprefix(f"{LOG}.").removesuffix(".zst")
            if number.isdigit():
                parts[int(number)] = part
        current = [self.file(LOG)] if self.file(LOG).exists() else []
        return [parts[number] for number in sorted(parts)] + current

    def log_tail(self, num_lines: int = 50, max_bytes: int = 256_000) -> str:
        """The last lines of ``train.log``, read from its end however large it is."""
        return tail(self.file(LOG), num_lines, max_bytes)


def find_runs(root: str | Path) -> list[RunDir]:
    """Every run directory below ``root``, oldest name first; ``root`` may itself be one."""
    root = Path(root)
    if (root / STATUS).exists():
        return [RunDir(root)]
    found = [RunDir(path.parent) for path in root.glob(f"*/*/{STATUS}")] + [
        RunDir(path.parent) for path in root.glob(f"*/{STATUS}")
    ]
    return sorted(found, key=lambda run: (run.experiment, run.run_id))


# -- who records, and is it still alive ------------------------------------------------------------------------------


@contextlib.contextmanager
def claimed(run: RunDir, purpose: str, wait_s: float = 0.0) -> Iterator[bool]:
    """Whether this process alone does ``purpose`` with the run inside the block. The claim ends with the process.

    Another's claim is waited for ``wait_s`` seconds: one that was killed may take a moment to be gone.
    """
    import fcntl

    try:
        file = run.file(f".{purpose}.lock").open("wb")
    except OSError:  # a directory that cannot be written needs no claim
        yield True
        return
    with file:
        deadline, mine = time.monotonic() + wait_s, False
        while not mine:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.02)
            except OSError:  # a file system without locks
                mine = True
        yield mine


def own_status(state: str, **fields: Any) -> Status:
    """A status recorded by this process."""
    pid = os.getpid()
    return Status(state=state, host=socket.gethostname(), pid=pid, pid_started=_process_started(pid) or 0.0, **fields)


def is_alive(status: Status) -> bool:
    """Whether the very process that wrote ``status`` still runs (a reused pid has another start time)."""
    started = _process_started(status.pid)
    return started is not None and abs(started - status.pid_started) < 1.0


def _process_started(pid: int) -> float | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None
