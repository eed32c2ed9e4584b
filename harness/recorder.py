"""From bytes to the record: the log scrubbed and bounded, rows and events on disk before anything else sees them."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from harness import rundir
from harness.logs import Event, LogReader, Rejected, Row
from harness.repair import RESERVE
from harness.rundir import RunDir
from harness.scrub import Scrubber
from harness.streams import AppendOnly, JsonLines, json_lines

LOG_BYTES = 64 << 20
"""A larger ``train.log`` is set aside and compressed."""
WHOLE_PARTS = 8
"""Of further parts only the step lines are kept."""
RANK_LOG_BYTES = 1 << 20
"""Of what another rank than 0 prints, the last one to two times this are kept."""
RESERVE_BYTES = 1 << 20
"""Given up when the disk is full, so that the record can be completed."""
FULL = (errno.ENOSPC, errno.EDQUOT)


class Recorder:
    """Writes down what torchrun and the ranks print and what the reader finds in it.

    ``train.log`` is torchrun's output and rank 0's, the latter with the prefix that torchrun would give it, byte for
    byte but for secrets; the other ranks' outputs go to ``ranks/<rank>.log``.
    """

    def __init__(self, run: RunDir, *, log_bytes: int = LOG_BYTES, node: int = 0, logs: Path | None = None) -> None:
        """For another node than 0 everything has names of its own; ``logs`` is where else than in the run directory
        the logs of ranks go, and the whole log of another node."""
        self.rows: list[Row] = []
        self.events: list[Event] = []
        self.rejected = 0
        self.disk_full = False
        """Whether the disk has no room: what came afterwards is not recorded."""
        self.nonfinite_at: int | None = None
        """The first step whose loss was not finite."""
        self._run, self._log_bytes, self._parts = run, log_bytes, 0
        logs = logs or run.path
        self._log_file = logs / f"train.node{node}.log" if node else run.file(rundir.LOG)
        self._ranks = logs / (f"ranks.node{node}" if node else "ranks")
        self._reserve = run.file(f"{RESERVE}.node{node}" if node else RESERVE)
        self._log = AppendOnly(self._log_file)
        self._rows = JsonLines(run.file(f"nodes/{node}.{rundir.ROWS}" if node else rundir.ROWS))
        self._events = JsonLines(run.file(f"nodes/{node}.{rundir.EVENTS}" if node else rundir.EVENTS))
        self._rank_logs: dict[int, RankLog] = {}
        self._scrubbers: dict[int | None, Scrubber] = {None: Scrubber(), 0: Scrubber(b"[rank0]:")}
        self._reader = LogReader(live=True)
        self._closed = False
        self._lock = threading.RLock()  # samplers note events from their own threads
        with contextlib.suppress(OSError):
            self._reserve.write_bytes(os.urandom(RESERVE_BYTES))  # no file system can store that as a hole

    def feed(self, data: bytes, rank: int | None = None) -> list[Row]:
        """Write what a rank (None: torchrun) printed and the records in it; return the new training rows."""
        if rank not in self._scrubbers:
            self._scrubbers[rank] = Scrubber()
        return self._write(self._scrubbers[rank].feed(data), rank)

    def close(self) -> list[Row]:
        """Read what the last, unfinished lines hold; a second call does nothing."""
        if self._closed:
            return []
        self._closed = True
        rows = [row for rank, scrubber in self._scrubbers.items() for row in self._write(scrubber.close(), rank)]
        rows += self._keep(self._reader.close())
        for file in (self._log, self._rows, *self._rank_logs.values()):
            file.close()
        with contextlib.suppress(OSError):
            self._reserve.unlink(missing_ok=True)
        return rows

    def note(self, kind: str, **data: object) -> None:
        """An event of the harness's own, e.g. a stall; from any thread, and also when the log is closed."""
        self._keep([Event(kind=kind, line=0, time=rundir.now(), data=dict(data))])

    def write_text(self, name: str, text: str) -> None:
        """A document beside the streams; a full disk goes without."""
        with contextlib.suppress(OSError):
            self._run.write_text(name, text)

    def _write(self, clean: bytes, rank: int | None) -> list[Row]:
        if not clean or self.disk_full:
            return []
        if rank:
            if rank not in self._rank_logs:
                self._rank_logs[rank] = RankLog(self._ranks / f"{rank}.log")
            self._rank_logs[rank].write(clean)
            return []
        self._to_disk(self._log, clean)
        rows = self._keep(self._reader.feed(clean))
        size = self._log.tell()
        if size >= 2 * self._log_bytes or (size >= self._log_bytes and clean.endswith(b"\n")):
            self._set_aside()
        return rows

    def _keep(self, records: Sequence[Row | Event | Rejected]) -> list[Row]:
        rows = [record for record in records if isinstance(record, Row)]
        events = [record for record in records if isinstance(record, Event)]
        rejected = [record for record in records if isinstance(record, Rejected)]
        with self._lock:
            self._to_disk(self._rows, json_lines(row.to_json() for row in rows))
            self._to_disk(self._events, json_lines(record.to_json() for record in (*events, *rejected)))
            self.rows += rows
            self.events += events
            self.rejected += len(rejected)
        return [row for row in rows if row.kind == "train"]

    def _to_disk(self, file: AppendOnly, data: bytes) -> None:
        """Append; on a full disk give up the reserve and go on, but take in no more."""
        try:
            file.write(data)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.disk_full = True
            self._reserve.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                file.write(b"")

    def _set_aside(self) -> None:
        """Start a new ``train.log``; the old one becomes a numbered part, first as it is, then compressed."""
        self._parts += 1
        part = self._log_file.with_name(f"{self._log_file.name}.{self._parts}")
        with contextlib.suppress(OSError):
            self._log.close()
            os.rename(self._log_file, part)
            compress(part, only_steps=self._parts > WHOLE_PARTS)
        self._log = AppendOnly(self._log_file)


class RankLog:
    """The end of what one rank printed: two files in turns, of which the older is dropped."""

    def __init__(self, path: Path, limit: int = RANK_LOG_BYTES) -> None:
        self.path, self._limit = path, limit
        path.parent.mkdir(exist_ok=True)
        self._file: AppendOnly | None = None

    def write(self, data: bytes) -> None:
        """Append; a full disk loses it, since this log only helps to explain a failure."""
        with contextlib.suppress(OSError):
            self._file = self._file or AppendOnly(self.path)
            self._file.write(data)
            if self._file.tell() >= self._limit:
                self.close()
                os.replace(self.path, self.path.with_suffix(".log.1"))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def compress(part: Path, *, only_steps: bool) -> None:
    """Replace a part by its compressed copy, which appears under its name only when it is whole."""
    import zstandard

    whole, unfinished = part.with_name(f"{part.name}.zst"), part.with_name(f".{part.name}.{os.getpid()}.tmp")
    compressor = zstandard.ZstdCompressor(level=3)
    try:
        with part.open("rb") as source, compressor.stream_writer(unfinished.open("wb")) as target:
            left_out = 0
            while lines := source.readlines(1 << 20):
                kept = [line for line in lines if b"step" in line and b"loss" in line] if only_steps else lines
                left_out += len(lines) - len(kept)
                target.write(b"".join(kept))
            if left_out:
                target.write(b"[pilot] %d lines left out: the log grew too large\n" % left_out)
        os.replace(unfinished, whole)
        part.unlink()
    finally:
        unfinished.unlink(missing_ok=True)
