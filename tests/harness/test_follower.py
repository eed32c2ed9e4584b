"""The tracker's process seen from the pilot: what it is waited for, and for how long at most (no torch)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.follower import ALIVE_S, ANSWER_S, Follower
from harness.rundir import RunDir
from tests.faults.servers import Answering, Deaf
from tests.harness.test_tracking import content, make_run

LONG_S = 20.0
"""Far more than any of this takes, and far less than waiting for an answer would."""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "runs")


@pytest.fixture
def answering() -> Iterator[Answering]:
    server = Answering(500, "no")
    yield server
    server.server_close()


def follow(run: RunDir, uri: str) -> Follower:
    return Follower(run, uri, flush_s=0.1, wait_s=120.0)


def test_finished_run_is_sent_whole(run: RunDir, tmp_path: Path, empty_database: Path) -> None:
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    follower = follow(run, f"sqlite:///{tmp_path / 'mlflow.db'}")
    follower.finish(interrupted=lambda: False)
    assert follower.first_failure() is None
    assert content(f"sqlite:///{tmp_path / 'mlflow.db'}", run)["status"] == "FINISHED"
    assert run.sent()["servers"][0]["complete"] is True


def test_deaf_server_is_given_up(run: RunDir) -> None:
    deaf = Deaf()
    follower, start = follow(run, deaf.uri), time.monotonic()
    follower.finish(interrupted=lambda: False)
    assert time.monotonic() - start < LONG_S
    assert run.sent().get("servers", [{}])[0].get("rows", 0) == 0
    deaf.server_close()


def test_failing_server_is_given_up_and_said_once(run: RunDir, answering: Answering) -> None:
    follower = follow(run, answering.uri)
    deadline = time.monotonic() + LONG_S
    while (why := follower.first_failure()) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert why is not None
    assert "500" in why
    time.sleep(0.5)  # it goes on trying
    assert follower.first_failure() is None
    start = time.monotonic()
    follower.finish(interrupted=lambda: False)
    assert time.monotonic() - start < LONG_S


def test_server_that_answered_is_given_longer_than_one_that_failed(run: RunDir) -> None:
    follower = follow(run, "http://127.0.0.1:9")
    patience = []
    for told in (b"ready\n", b"ok 0.2\n", b"ok 7.0\n", b"failed refused\n"):
        follower._unread += told
        follower._listen()
        patience.append(follower._patience())
    follower.end()
    assert patience == [ANSWER_S, ALIVE_S, 21.0, ANSWER_S]


def test_signal_ends_the_waiting(run: RunDir, tmp_path: Path) -> None:
    follower = follow(run, f"sqlite:///{tmp_path / 'fresh.db'}")
    follower.finish(interrupted=lambda: True)
    assert run.sent() == {}


def test_password_is_in_no_argument(run: RunDir) -> None:
    follower = follow(run, "http://me:theirpassword@127.0.0.1:9")
    command = Path(f"/proc/{follower._process.pid}/cmdline").read_bytes()
    follower.end()
    assert b"harness.sync" in command
    assert b"theirpassword" not in command
