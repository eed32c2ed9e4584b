"""What several test modules share: the command line as a user calls it, and one multirun over the three paths."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.launch import processes_of
from harness.rundir import RunDir, find_runs

ROOT = Path(__file__).resolve().parent.parent
SHALLOW = ("scale.num_layers=2", "train.seq_len=128")
"""Makes a rehearsal as short as it gets: almost all of its 7 s are imports."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("torchtitan") is None:
        for item in items:
            if item.get_closest_marker("titan"):
                item.add_marker(pytest.mark.skip(reason="torchtitan is not installed: pip install '.[train]'"))


@dataclass(frozen=True)
class Called:
    """A finished command."""

    exit_code: int
    stdout: str
    stderr: str


def environment() -> dict[str, str]:
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("PILOT_", "HYDRA_", "MLFLOW_"))}
    return keep | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def call(module: str, *arguments: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> Called:
    """``python -m module arguments`` to its end."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True, text=True, cwd=cwd, env=environment() | (env or {}), timeout=300,
    )  # fmt: skip
    return Called(done.returncode, done.stdout, done.stderr)


def start(*arguments: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """``python -m harness arguments``, running."""
    return subprocess.Popen(
        [sys.executable, "-m", "harness", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd, env=environment() | (env or {}),
    )  # fmt: skip


def only_run(runs: Path) -> RunDir:
    found = find_runs(runs)
    assert len(found) == 1, [run.path for run in found]
    return found[0]


def assert_no_process(run: RunDir) -> None:
    assert processes_of(run.run_id) == []


@dataclass(frozen=True)
class Multirun:
    """One call of ``python -m harness -m +path=hf_4b,native_4b,moe_nki``."""

    called: Called
    runs: Path
    by_path: dict[str, RunDir]

    @property
    def database(self) -> str:
        return f"sqlite:///{self.runs / 'mlflow.db'}"


@pytest.fixture(scope="session")
def three_paths(tmp_path_factory: pytest.TempPathFactory) -> Multirun:
    """The three rehearsals at their default size, tracked in a fresh database."""
    runs = tmp_path_factory.mktemp("three") / "runs"
    called = call("harness", "-m", "+path=hf_4b,native_4b,moe_nki", f"runs={runs}")
    found = find_runs(runs)
    return Multirun(called, runs, {run.config()["path"]["name"]: run for run in found})


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with its tables made, to copy: making them takes seconds."""
    from harness.tracking import connect

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    connect(f"sqlite:///{path}")
    return path
