"""Files of records that only grow: written a line at a time, read back with a torn last line tolerated.

Non-finite floats are stored as the strings ``"nan"``, ``"inf"`` and ``"-inf"``, since JSON has no others.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

PIECE = 4 << 20
"""How much of a growing file is taken into memory at a time."""


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


class AppendOnly:
    """A file that only grows; each ``write`` is handed to the kernel before it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)
        self._unwritten = b""
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Append ``data``, from any thread.

        Raises:
            OSError: the disk is full; the next call goes on where this one broke off.
        """
        with self._lock:
            self._unwritten += data
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._file.fileno(), self._unwritten) :]

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class JsonLines(AppendOnly):
    """An append-only stream of JSON objects, one on a line."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        if _ends_torn(path):
            self.write(b"\n")

    def append(self, *records: Any) -> None:
        """Write each record as one line. Raises OSError when the disk is full: nothing is dropped in silence."""
        self.write(json_lines(records))


def json_lines(records: Iterable[Any]) -> bytes:
    """Each record as one line of JSON."""
    lines = (json.dumps(to_jsonable(record), allow_nan=False, ensure_ascii=False) + "\n" for record in records)
    return "".join(lines).encode("utf-8", "surrogatepass")


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
    """Reads a JSON-lines file while it grows: each call of :meth:`new` gives objects completed since the last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def new(self) -> list[dict[str, Any]]:
        """The next objects, at most about ``PIECE`` bytes of them: empty only when there are no more."""
        size = PIECE
        while True:
            try:
                with self.path.open("rb") as file:
                    file.seek(self._offset)
                    data = file.read(size)
            except OSError:
                return []
            complete = data[: data.rfind(b"\n") + 1]
            if not complete and len(data) == size:  # one line longer than a piece
                size *= 2
                continue
            self._offset += len(complete)
            records = [record for line in complete.splitlines() if (record := _parse_line(line)) is not None]
            if records or not complete:
                return records


def _parse_line(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
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


def _ends_torn(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
