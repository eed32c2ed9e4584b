"""All that an MLflow database and its artifacts hold of a run, so that two of them can be compared."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from harness.rundir import RunDir


def content(database: Path, run: RunDir) -> dict[str, Any]:
    """Status, name, times, params, tags, every point and every artifact's hash, of the one MLflow run of ``run``."""
    # Not read-only: what a killed server left half-written is rolled back by the next who opens the database.
    with closing(sqlite3.connect(f"file:{database}?mode=rw", uri=True)) as connection:
        query = (
            "select r.run_uuid, r.status, r.name, r.start_time, r.end_time, r.artifact_uri, e.name from runs r "
            "join tags t using (run_uuid) join experiments e using (experiment_id) "
            "where t.key = 'run_id' and t.value = ? and r.lifecycle_stage = 'active'"
        )
        found = connection.execute(query, [run.run_id]).fetchall()
        assert len(found) == 1, found
        uuid, status, name, start, end, artifacts, experiment = found[0]
        params = dict(connection.execute("select key, value from params where run_uuid = ?", [uuid]))
        tags = dict(connection.execute("select key, value from tags where run_uuid = ?", [uuid]))
        columns = "select key, step, timestamp, value, is_nan from"
        points = sorted(connection.execute(f"{columns} metrics where run_uuid = ?", [uuid]))
        latest = sorted(connection.execute(f"{columns} latest_metrics where run_uuid = ?", [uuid]))
    place = Path(urlparse(artifacts).path)
    hashes = {
        str(file.relative_to(place)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(place.rglob("*"))
        if file.is_file()
    }
    about = {"status": status, "name": name, "start": start, "end": end, "experiment": experiment}
    return about | {"params": params, "tags": tags, "points": points, "latest": latest, "artifacts": hashes}


def status_of(database: Path, run: RunDir) -> tuple[str, str]:
    """Status and reason in MLflow."""
    found = content(database, run)
    return found["status"], found["tags"].get("status_reason", "")


def losses(database: Path, run: RunDir) -> list[tuple[int, float | str]]:
    """Step and loss of every point of the loss."""
    points = content(database, run)["points"]
    return [(step, "nan" if is_nan else value) for key, step, _, value, is_nan in points if key == "train/loss"]
