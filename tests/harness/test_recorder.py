"""The recorder bounds the log without losing a step, and a killed one's record is completed from the log (no torch)."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from harness.logs import Row, read_files
from harness.logs.files import pieces
from harness.recorder import RankLog, Recorder, compress
from harness.repair import recover, tidy
from harness.rundir import RunDir
from harness.streams import AppendOnly
from tests.faults.standin import STEP, line

NUM_STEPS = 40


def step_line(step: int) -> bytes:
    return line(STEP.format(step=step, loss=7.6 - step / 100, norm=1.0, tps=1000 + step)).encode()


LOG = b"".join(step_line(step) + b"some warning\n" for step in range(1, NUM_STEPS + 1)) + (
    b"RuntimeError: boom\nstep: 41  loss:  7.1"  # a last line that was cut
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "pilot", "x")


def rows_in(run: RunDir) -> list[dict]:
    return [record.to_json() for record in read_files(run.log_files()) if isinstance(record, Row)]


def test_log_is_byte_for_byte_and_rank_0_has_its_prefix(run: RunDir) -> None:
    recorder = Recorder(run)
    recorder.feed(b"torchrun says\n")
    recorder.feed(b"\xff from rank\nha", rank=0)
    recorder.feed(b"torchrun again\n")
    recorder.feed(b"lf", rank=0)
    recorder.feed(b"another rank\n", rank=3)
    recorder.close()
    assert run.file("train.log").read_bytes() == b"torchrun says\n[rank0]:\xff from rank\ntorchrun again\n[rank0]:half"
    assert run.file("ranks/3.log").read_bytes() == b"another rank\n"
    assert not run.file(".reserve").exists()


def test_large_log_is_set_aside_and_read_as_one(run: RunDir) -> None:
    recorder = Recorder(run, log_bytes=2000)
    for start in range(0, len(LOG), 333):
        recorder.feed(LOG[start : start + 333])
    recorder.close()
    files = run.log_files()
    assert len(files) == 4
    assert [file.suffix for file in files] == [".zst"] * (len(files) - 1) + [".log"]
    assert all(file.stat().st_size < 3000 for file in files)
    assert [row["step"] for row in run.rows()] == list(range(1, NUM_STEPS + 1))
    assert rows_in(run) == list(run.rows())
    assert b"".join(data for file in files for data in pieces(file)) == LOG


def test_late_parts_keep_their_steps_and_say_what_is_missing(tmp_path: Path) -> None:
    part = tmp_path / "train.log.9"
    part.write_bytes(LOG)
    compress(part, only_steps=True)
    kept = b"".join(pieces(tmp_path / "train.log.9.zst"))
    assert kept.count(b"step:") == NUM_STEPS + 1
    assert b"some warning" not in kept
    assert kept.endswith(b"[pilot] 41 lines left out: the log grew too large\n")
    assert [*tmp_path.iterdir()] == [tmp_path / "train.log.9.zst"]


def test_part_that_is_there_twice_is_read_once(run: RunDir) -> None:
    """Killed between the compressed copy and the removal of the original."""
    recorder = Recorder(run, log_bytes=2000)
    recorder.feed(LOG)
    recorder.close()
    run.file("train.log.1").write_bytes(b"".join(pieces(run.file("train.log.1.zst"))))
    assert [file.name for file in run.log_files()] == ["train.log.1.zst", "train.log"]


def test_rank_log_keeps_the_end(tmp_path: Path) -> None:
    log = RankLog(tmp_path / "ranks" / "1.log", limit=100)
    for number in range(100):
        log.write(b"line %3d\n" % number)
    log.close()
    text = (tmp_path / "ranks" / "1.log.1").read_bytes() + (tmp_path / "ranks" / "1.log").read_bytes()
    assert len(text) <= 300
    assert text.splitlines()[-1] == b"line  99"


class FullDisk:
    """``os.write`` of a disk with so much room left, which the reserve adds to when it is given up."""

    def __init__(self, run: RunDir, room: int) -> None:
        self.run, self.room, self.write = run, room, os.write

    def __call__(self, descriptor: int, data: bytes) -> int:
        room = self.room + (0 if self.run.file(".reserve").exists() else 1 << 20)
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.write(descriptor, bytes(data)[:room])
        self.room -= written
        return written


@pytest.mark.parametrize("room", [0, 10, 1000, 2345])
def test_full_disk_keeps_rows_and_log_in_step(run: RunDir, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(run)
    monkeypatch.setattr(os, "write", FullDisk(run, room))
    for start in range(0, len(LOG), 500):
        recorder.feed(LOG[start : start + 500])
    assert recorder.disk_full
    recorder.note("ended_by_harness", message="disk full")
    recorder.close()
    assert LOG.startswith(run.file("train.log").read_bytes())
    assert rows_in(run) == list(run.rows())
    assert [event["kind"] for event in run.events()] == ["ended_by_harness"]


def test_other_errors_than_a_full_disk_are_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = AppendOnly(tmp_path / "x")
    monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
    with pytest.raises(OSError, match="I/O error"):
        file.write(b"x")


@pytest.mark.parametrize("seed", range(20))
def test_record_cut_anywhere_is_completed_from_the_log(run: RunDir, seed: int) -> None:
    recorder = Recorder(run)
    recorder.feed(LOG)
    recorder.note("stall", step=3)
    recorder.close()
    rows, events = list(run.rows()), list(run.events())
    choose = random.Random(seed)
    for name in ("rows.jsonl", "events.jsonl"):
        data = run.file(name).read_bytes()
        run.file(name).write_bytes(data[: choose.randint(0, len(data))])
    noted = any(event["kind"] == "stall" for event in run.events())
    before = len(list(run.rows()))
    assert recover(run) == len(rows) - before
    assert list(run.rows()) == rows
    assert [event for event in run.events() if event["line"]] == [event for event in events if event["line"]]
    assert any(event["kind"] == "stall" for event in run.events()) == noted
    assert recover(run) == 0


def test_tidy_scrubs_what_torchrun_wrote(run: RunDir) -> None:
    place = run.file("ranks") / "none_x" / "attempt_0" / "1"
    place.mkdir(parents=True)
    (place / "stderr.log").write_text("before main: hf_" + "a1B2" * 8)
    run.file("tracking.log").write_text("http://u:secret@host")
    run.file(".reserve").write_bytes(b"x")
    tidy(run)
    assert (place / "stderr.log").read_text() == "before main: [redacted]"
    assert run.file("tracking.log").read_text() == "http://[redacted]@host"
    assert not run.file(".reserve").exists()
