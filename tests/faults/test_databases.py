"""A local database that is locked, read-only, or made by eight pilots at once."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from harness.rundir import RunDir
from harness.sync import sync
from tests.faults.contents import losses, status_of
from tests.faults.pilots import assert_gone, assert_rows_complete, log_of, standin, start_pilot

pytestmark = [pytest.mark.titan, pytest.mark.faults]
FLUSH = "tracking.flush_s=0.5"

LOCK = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("begin exclusive")
print("locked", flush=True)
time.sleep(30)
"""


def test_database_locked_for_30_s(tmp_path: Path, prepared_cache: Path, empty_database: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    shutil.copy(empty_database, runs / "mlflow.db")
    with subprocess.Popen([sys.executable, "-c", LOCK, str(runs / "mlflow.db")], stdout=subprocess.PIPE) as lock:
        assert lock.stdout is not None
        assert lock.stdout.readline() == b"locked\n"
        pilot = start_pilot(runs, FLUSH, cache=prepared_cache)
        assert pilot.wait() == 0, pilot.output
        run = pilot.run
        assert (run.status().state, len(assert_rows_complete(run))) == ("finished", 10)
        assert_gone(run)
        locked = lock.poll() is None
    assert "database is locked" in pilot.output
    if locked:
        assert pilot.output.count("tracking: ") == 1
        assert "still to be sent" in pilot.output
    assert_synced(run, runs / "mlflow.db")


def test_read_only_disk(tmp_path: Path, prepared_cache: Path, empty_database: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        shutil.copy(empty_database, place / "mlflow.db")
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        tracked = f"tracking.uri=sqlite:///{place / 'mlflow.db'}"
        pilot = start_pilot(tmp_path / "runs", *standin(100, 0.1), tracked, FLUSH, cache=prepared_cache)
        assert pilot.wait() == 1  # the stand-in reports no checks
        assert "attempt to write a readonly database" in pilot.output
        assert "still to be sent" in pilot.output
        assert len(assert_rows_complete(pilot.run)) == 100
        subprocess.run(["mount", "-o", "remount,rw", str(place)], check=True)
        assert_synced(pilot.run, place / "mlflow.db")
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def assert_synced(run: RunDir, database: Path) -> None:
    assert sync([run], f"sqlite:///{database}", everything=True) == 0
    assert_whole(database, run)


def assert_whole(database: Path, run: RunDir) -> None:
    assert status_of(database, run)[0] == "FINISHED"
    assert losses(database, run) == [(row["step"], row["loss"]) for row in run.rows()]


def test_8_parallel_starts_on_a_fresh_database(tmp_path: Path, prepared_cache: Path) -> None:
    """Eight pilots at once; the stand-in trains, since eight real trainings at once would only test patience."""
    shared = tmp_path / "mlflow.db"
    pilots = [
        start_pilot(tmp_path / str(n) / "runs", *standin(30, 0.1), f"tracking.uri=sqlite:///{shared}", FLUSH,
                    "tracking.wait_s=300", cache=prepared_cache)
        for n in range(8)
    ]  # fmt: skip
    for pilot in pilots:
        assert pilot.wait(300) == 1
        assert "still to be sent" not in pilot.output, pilot.output
        assert_whole(shared, pilot.run)
    with sqlite3.connect(shared) as connection:
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        assert connection.execute("select count(*) from runs").fetchall() == [(8,)]
        assert connection.execute("select count(*) from experiments where name = 'pilot'").fetchall() == [(1,)]
    assert sorted(path.name for path in tmp_path.glob(".mlflow*")) == []
    assert log_of(pilots[0].run)
