"""Files of every wrapping, several in order, and the command line."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from harness.logs import Event, LogReader, Rejected, Row, read_files
from harness.logs.__main__ import main

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
RUN = (GOLDEN / "neuron_rehearsal.log").read_bytes()


def plain(data: bytes) -> list[object]:
    reader = LogReader()
    return [record.to_json() for record in [*reader.feed(data), *reader.close()]]


def read(*paths: Path) -> list[object]:
    return [record.to_json() for record in read_files(paths)]


def test_gzip_and_zstd_are_told_by_their_first_bytes(tmp_path: Path) -> None:
    zipped, packed, several = tmp_path / "a.log", tmp_path / "b.log", tmp_path / "c.log"
    zipped.write_bytes(gzip.compress(RUN))
    packed.write_bytes(zstandard.compress(RUN))
    half = len(RUN) // 2
    several.write_bytes(gzip.compress(RUN[:half]) + gzip.compress(RUN[half:]))
    assert read(zipped) == read(packed) == read(several) == plain(RUN)


def test_a_damaged_gzip_gives_what_can_be_read_and_then_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cut.log.gz"
    line = next(line for line in RUN.splitlines(keepends=True) if b"step:  1" in line)
    log = b"".join(line.replace(b"step:  1", b"step: %d" % step) for step in range(1, 3000))
    path.write_bytes(gzip.compress(log)[:-300])
    found = []
    with pytest.raises(OSError, match=r"cut\.log\.gz: the compressed data end early"):
        found.extend(read_files(path))
    assert len([record for record in found if isinstance(record, Row)]) > 100


def test_several_files_are_one_log_even_without_a_last_line_feed(tmp_path: Path) -> None:
    first, second = tmp_path / "1.log", tmp_path / "2.log"
    lines = RUN.splitlines(keepends=True)
    first.write_bytes(b"".join(lines[:6]).rstrip(b"\n"))
    second.write_bytes(b"".join(lines[6:]))
    assert read(first, second) == plain(RUN)


def test_records_survive_json() -> None:
    for name in ("numbers", "forks", "damage_cut", "failures", "metrics_jsonl"):
        reader = LogReader()
        for record in [*reader.feed((GOLDEN / f"{name}.log").read_bytes()), *reader.close()]:
            if isinstance(record, Rejected):
                continue
            text = json.loads(json.dumps(record.to_json(), allow_nan=False))
            again = (Row if isinstance(record, Row) else Event).from_json(text)
            assert repr(again) == repr(record)


def command(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "harness.logs", *args], input=stdin, capture_output=True, cwd=ROOT, check=False
    )


def test_rows_from_stdin() -> None:
    done = command("rows", "-", stdin=RUN)
    assert done.returncode == 0
    assert [json.loads(line)["step"] for line in done.stdout.splitlines()] == [1, 2]
    assert json.loads(done.stdout.splitlines()[0])["memory_gib"] is None
    assert done.stderr == b""


def test_events(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", str(GOLDEN / "neuron_rehearsal.log")]) == 0
    kinds = [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]
    assert kinds[:3] == ["version", "override", "overrides_applied"]
    assert kinds[-1] == "training_completed"


def test_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(GOLDEN / "damage_cut.log")]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["rows"] == {"train": 9}
    assert summary["rejected"] == 4
    assert summary["last_step"] == 13


def test_every_rank_and_the_metrics_rank(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(GOLDEN / "ranks_agree.log")
    assert main(["rows", path, "--every-rank"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 12
    assert main(["rows", path, "--metrics-rank", "3"]) == 0
    assert {json.loads(line)["rank"] for line in capsys.readouterr().out.splitlines()} == {3}


def test_strict_reports_and_fails_only_where_something_was_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rows", "--strict", str(GOLDEN / "s12.log")]) == 0
    assert main(["rows", str(GOLDEN / "damage_diff.log")]) == 0
    capsys.readouterr()
    assert main(["rows", "--strict", str(GOLDEN / "damage_diff.log")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "line 1: not understood, a colour changes inside a number" in err
    assert len(err.splitlines()) == 5


def test_wrong_usage_and_missing_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["rows", str(tmp_path / "none.log")]) == 2
    assert capsys.readouterr().err == f"harness.logs: cannot read {tmp_path / 'none.log'}: No such file or directory\n"
    with pytest.raises(SystemExit) as exit_code:
        main(["tables", "x"])
    assert exit_code.value.code == 2


def test_a_reader_of_our_output_may_leave_early() -> None:
    script = f"{sys.executable} -m harness.logs events - | head -1"
    done = subprocess.run(["bash", "-c", script], input=RUN * 500, capture_output=True, cwd=ROOT, check=False)
    assert json.loads(done.stdout)["kind"] == "version"
    assert done.stderr == b""


def test_the_reader_starts_without_heavy_libraries() -> None:
    code = "import sys, harness.logs.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=True)
    loaded = set(done.stdout.decode().split())
    assert "harness.logs.reader" in loaded
    assert not loaded & {"torch", "numpy", "pandas", "mlflow", "tensorboard", "zstandard", "yaml", "hydra"}
