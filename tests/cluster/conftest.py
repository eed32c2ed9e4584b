"""A cluster and a tracking server, real ones, started once for all tests; where they cannot be, what is missing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import server
from tests.cluster import slurm_cluster
from tests.cluster.slurm_cluster import SlurmCluster
from tests.cluster.submitted import Queue, with_cache

HOW = "`make cluster-tools` installs it"


def skip_without(*lacks: str) -> None:
    if lacks:
        pytest.skip(f"missing on this machine: {', '.join(lacks)}; {HOW}")


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A directory that the users of munge and PostgreSQL can reach, which pytest's own are not."""
    path = Path(tempfile.mkdtemp(prefix="pilot-cluster-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Slurm with two nodes; its commands find it in this process's environment too."""
    skip_without(*slurm_cluster.missing())
    running = SlurmCluster(folder / "slurm")
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(running.config)
    yield running
    running.stop()
    if before is None:
        os.environ.pop("SLURM_CONF", None)
    else:
        os.environ["SLURM_CONF"] = before


@pytest.fixture(scope="session")
def database(folder: Path) -> Iterator[server.Postgres]:
    skip_without(*server.missing())
    running = server.Postgres(folder / "server")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def tracking(folder: Path, database: server.Postgres) -> Iterator[server.MlflowServer]:
    """``mlflow server`` on that PostgreSQL, as ``make server`` starts it."""
    running = server.MlflowServer(folder / "server", database.uri)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def prepared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer and corpus of a rehearsal, to copy into fresh directories of runs."""
    from harness.data import DataConfig, resolve
    from harness.titan.assets import prepare_data
    from tests.conftest import ROOT

    cache = tmp_path_factory.mktemp("cache") / ".cache"
    prepare_data(resolve(DataConfig(), base=ROOT), cache=cache, vocab=2048)
    return cache


@pytest.fixture
def queue(cluster: SlurmCluster, prepared_cache: Path, tmp_path: Path) -> Queue:
    """A fresh directory of runs, on an idle cluster."""
    cluster.wait_idle()
    return Queue(cluster, with_cache(tmp_path / "runs", prepared_cache))
