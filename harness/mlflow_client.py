"""A client of an MLflow server or of a local database, with bounded patience and without telemetry."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

URI = "MLFLOW_TRACKING_URI"
DATABASE, ARTIFACTS = "mlflow.db", "mlartifacts"
SQLITE = "sqlite:///"
SETTINGS = {
    # MLflow's own default is 7 retries with a doubling pause: the first call to a server that is down takes 247 s. The
    # tracker tries again itself, since a repeated request to create a run may create two.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
LOCK_S = 5.0
"""How long a local database may be locked by others before that counts as a failure."""
SCHEMA_S = 120.0
"""How long other processes may take to make the tables of a fresh database."""


def default_uri(runs: Path) -> str:
    """The local database in the directory of all runs."""
    return f"{SQLITE}{(runs / DATABASE).resolve()}"


def artifact_location(uri: str) -> str | None:
    """Where artifacts go: beside a local database; a server decides itself."""
    return (Path(uri.removeprefix(SQLITE)).parent / ARTIFACTS).resolve().as_uri() if uri.startswith(SQLITE) else None


def load() -> None:
    """Import MLflow, which takes seconds, with our settings where the environment has none of its own."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import mlflow.tracking  # noqa: F401


def connect(uri: str) -> MlflowClient:
    """A client whose store is ready. Raises what MLflow raises when the server does not answer."""
    load()
    from mlflow.tracking import MlflowClient

    if uri.startswith(SQLITE):
        database = Path(uri.removeprefix(SQLITE))
        _make_tables(database)
        _try_to_write(database)
    return MlflowClient(tracking_uri=uri)


def _make_tables(database: Path) -> None:
    """Make a fresh database, one process at a time and under another name until it is whole.

    Several processes that make the tables at once, or one that is killed meanwhile, leave a database broken for good.
    """
    from filelock import FileLock
    from mlflow.tracking import MlflowClient

    if database.exists():
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{database}.lock", timeout=SCHEMA_S):
        if database.exists():
            return
        unfinished = database.with_name(f".{database.name}.new")
        unfinished.unlink(missing_ok=True)
        MlflowClient(tracking_uri=f"{SQLITE}{unfinished}").search_experiments(max_results=1)
        os.replace(unfinished, database)


def _try_to_write(database: Path) -> None:
    """Fail within seconds where a database is locked or read-only: MLflow itself goes on trying for 100 s."""
    import sqlite3

    address = f"file:{quote(str(database))}?mode=rw"
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=LOCK_S)) as connection:
        connection.execute("begin immediate")
        connection.rollback()
