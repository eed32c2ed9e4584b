"""The run directory: the single source of truth about one pilot.

Documents (``status.json``, ``summary.json``, ...) are replaced atomically. Streams (``rows.jsonl``, ...) are only ever
appended to, one JSON object per line, and a torn last line (a writer killed in mid-write) is tolerated on reading.
Non-finite floats are stored as the strings ``"nan"``, ``"inf"`` and ``"-inf"``, since JSON has no others.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

CONFIG, MANIFEST, STATUS = "config.yaml", "manifest.json", "status.json"
SUMMARY, CHECKS, SENT = "summary.json", "checks.json", "mlflow.json"
ROWS, EVENTS, SAMPLES, LOG = "rows.jsonl", "events.jsonl", "samples.jsonl", "train.log"

RUNNING, FINISHED, FAILED, KILLED = "running", "finished", "failed", "killed"


def now() -> str:
    """The current time as ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def to_jsonable(value: Any) -> Any:
    """``value`` as plain JSON types: dataclasses become objects, paths strings, non-finite floats strings."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_jsonable(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Path):
        return str(value)
    return value


def to_float(value: Any) -> float | None:
    """A stored number as a float: ``"nan"`` and ``"inf"`` come back as such, null stays None."""
    return None if value is None else float(value)


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


class JsonLines:
    """An append-only stream of JSON objects; each ``append`` is handed to the kernel before it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)
        if _ends_torn(path):
            self._file.write(b"\n")

    def append(self, *records: Any) -> None:
        """Write each record as one line. Raises OSError when the disk is full: nothing is dropped in silence."""
        if records:
            lines = [json.dumps(to_jsonable(record), allow_nan=False, ensure_ascii=False) for record in records]
            _write_all(self._file.fileno(), ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass"))

    def close(self) -> None:
        self._file.close()


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
        except (OSError, json.JSONDecodeError):
            return default

    def config(self) -> dict[str, Any]:
        """The resolved configuration as plain dictionaries."""
        import yaml

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            return yaml.load(self.file(CONFIG).read_text(encoding="utf-8"), Loader=loader) or {}
        except (OSError, yaml.YAMLError):
            return {}

    def manifest(self) -> dict[str, Any]:
        return self.read_json(MANIFEST, {})

    def summary(self) -> dict[str, Any]:
        return self.read_json(SUMMARY, {})

    def checks(self) -> list[dict[str, Any]]:
        return self.read_json(CHECKS, [])

    def sent(self) -> dict[str, Any]:
        return self.read_json(SENT, {})

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


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file; lines that are torn or no object are passed over."""
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        for line in file:
            record = _parse_line(line)
            if record is not None:
                yield record


class GrowingJsonLines:
    """Reads a JSON-lines file while it grows: each call of :meth:`new` gives the objects completed since the last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def new(self) -> list[dict[str, Any]]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [record for line in complete.splitlines() if (record := _parse_line(line)) is not None]


def _parse_line(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def tail(path: Path, num_lines: int, max_bytes: int) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            text = file.read(max_bytes).decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-num_lines:])


# -- who records, and is it still alive ------------------------------------------------------------------------------


def own_status(state: str, **fields: Any) -> Status:
    """A status recorded by this process."""
    pid = os.getpid()
    return Status(state=state, host=socket.gethostname(), pid=pid, pid_started=_process_started(pid) or 0.0, **fields)


def repair(run: RunDir) -> Status | None:
    """Mark a run whose recording process is gone as killed; return the new status, or None if there was nothing to do.

    A process on another host cannot be seen from here, so such a run is left alone.
    """
    status = run.status()
    if status is None or status.state != RUNNING or status.host != socket.gethostname() or is_alive(status):
        return None
    reason = f"the harness process {status.pid} vanished (killed, or a restart) while in {status.phase or 'start-up'}"
    repaired = replace(status, state=KILLED, reason=reason, ended=now())
    run.write_status(repaired)
    return repaired


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


def _ends_torn(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
