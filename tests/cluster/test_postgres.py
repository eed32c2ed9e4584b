"""Sixteen pilots that write at once into one MLflow server on PostgreSQL: nothing lost, nothing doubled."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness import rundir, server
from harness.follower import Follower
from harness.mlflow_client import URI
from harness.rundir import JsonLines, RunDir, own_status
from tests.conftest import ROOT, call

pytestmark = pytest.mark.cluster
PILOTS, STEPS = 16, 2000
PATIENCE_S = 200.0
NAMES = {
    "train/loss", "train/grad_norm", "train/tps_per_rank", "train/tflops", "train/mfu_reported", "memory/reserved_gib",
    "memory/reserved_pct", "system/cpu_pct", "system/ranks_rss_gib", "system/memory_pct",
}  # fmt: skip
BEGAN = datetime(2026, 11, 30, tzinfo=UTC)


def value(pilot: int, step: int, place: int) -> float:
    """A figure that no other point has."""
    return pilot * 1e6 + step + place / 16


def row(pilot: int, step: int) -> dict:
    keys = ("loss", "grad_norm", "tps", "tflops", "mfu", "memory_gib", "memory_pct")
    values = {key: value(pilot, step, place) for place, key in enumerate(keys)}
    when = (BEGAN + timedelta(seconds=step)).isoformat()
    return {"kind": "train", "segment": 0, "step": step, "rank": 0, "time": when, "line": step} | values


def sample(pilot: int, step: int) -> dict:
    names = ("cpu_pct", "ranks_rss_gib", "memory_pct")
    values = {name: value(pilot, step, 7 + place) for place, name in enumerate(names)}
    return {"time": (BEGAN + timedelta(seconds=step, milliseconds=500)).isoformat(), "kind": "host"} | values


class Training:
    """The training side of a pilot: appends a row and a sample for each step, whatever the tracker does."""

    def __init__(self, runs: Path, number: int) -> None:
        self.run, self.number = RunDir.create(runs, "many", f"native_4b-{number:02}"), number
        self.status = own_status(rundir.RUNNING, started=BEGAN.isoformat())
        self.run.write_status(self.status)

    def train(self) -> None:
        rows, samples = JsonLines(self.run.file(rundir.ROWS)), JsonLines(self.run.file(rundir.SAMPLES))
        for step in range(1, STEPS + 1):
            rows.append(row(self.number, step))
            samples.append(sample(self.number, step))
            if step % 200 == 0:
                time.sleep(0.05)  # so that what is sent is what there is so far
        rows.close()
        samples.close()

    def end(self) -> None:
        from dataclasses import replace

        self.run.write_status(replace(self.status, state=rundir.FINISHED, ended=BEGAN.isoformat(), exit_code=0))


def complete(run: RunDir) -> bool:
    return any(entry.get("complete") for entry in run.sent().get("servers", []))


def count(database: server.Postgres, query: str) -> list[tuple]:
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchall()


def test_sixteen_pilots_at_once(tmp_path: Path, database: server.Postgres, tracking: server.MlflowServer) -> None:
    runs = tmp_path / "runs"
    trainings = [Training(runs, number) for number in range(PILOTS)]
    followers = [Follower(training.run, tracking.uri, flush_s=0.5, wait_s=200.0) for training in trainings]
    try:
        threads = [threading.Thread(target=training.train) for training in trainings]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sent_meanwhile = sum(
            entry["rows"] for training in trainings for entry in training.run.sent().get("servers", [])
        )
        assert sent_meanwhile < PILOTS * STEPS  # the trainings were over before their points were sent: none waited
        for training in trainings:
            training.end()
        deadline = time.monotonic() + PATIENCE_S
        while not all(complete(training.run) for training in trainings) and time.monotonic() < deadline:
            time.sleep(0.5)
    finally:
        for follower in followers:
            follower.end()
    unfinished = [training.run.sent() for training in trainings if not complete(training.run)]
    assert unfinished == []

    found = count(
        database,
        "select tags.value, count(*), count(distinct (metrics.key, metrics.step)) from metrics "
        "join tags on tags.run_uuid = metrics.run_uuid and tags.key = 'run_id' "
        "join runs on runs.run_uuid = metrics.run_uuid where lifecycle_stage = 'active' group by tags.value",
    )
    expected = STEPS * len(NAMES)
    assert sorted(found) == sorted((training.run.run_id, expected, expected) for training in trainings)
    keys = {name for (name,) in count(database, "select distinct key from metrics")}
    assert keys == NAMES
    (total,) = count(database, "select count(*), sum(value) from metrics")
    every = [
        value(pilot, step, place) for pilot in range(PILOTS) for step in range(1, STEPS + 1) for place in range(10)
    ]
    assert total[0] == len(every) == PILOTS * STEPS * 10
    assert total[1] == pytest.approx(sum(every), rel=1e-12)
    assert count(database, "select distinct status, lifecycle_stage from runs") == [("FINISHED", "active")]


@pytest.mark.titan
def test_a_pilot_without_a_route_is_sent_later_from_elsewhere(
    tmp_path: Path, database: server.Postgres, tracking: server.MlflowServer
) -> None:
    runs = tmp_path / "runs"
    arguments = ("+path=native_4b", "platform=cpu", "platform.num_ranks=1", "scale.num_layers=2", "train.seq_len=128",
                 "train.steps=3", "tracking=server", f"runs={runs}", "experiment_name=no_route")  # fmt: skip
    assert call("harness", *arguments, env={URI: "http://127.0.0.1:9"}).exit_code == 0
    question = (
        "select runs.status, count(*) from runs join experiments using (experiment_id) "
        "join metrics using (run_uuid) where experiments.name = 'no_route' and key = 'train/loss' group by 1"
    )
    assert count(database, question) == []
    for _ in range(2):  # as often as you like
        done = call("harness.sync", "--runs", str(runs), "--uri", tracking.uri)
        assert done.exit_code == 0, done
        assert count(database, question) == [("FINISHED", 3)]


def test_server_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(server, "missing", lambda: ["PostgreSQL (apt-get install postgresql)"])
    assert server.main([]) == 2
    assert capsys.readouterr().err == "harness.server: missing: PostgreSQL (apt-get install postgresql)\n"
    assert (ROOT / "Makefile").read_text().count("harness.server") == 1
