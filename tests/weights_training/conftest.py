"""Tiny published models, one process with Transformers, and pilots that train in this process; made once a session."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.beside import Beside
from tests.conftest import ROOT, environment

PACKAGES = ("torch", "torchtitan", "transformers")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    for item in items if missing else []:
        if item.get_closest_marker("titan"):
            item.add_marker(pytest.mark.skip(reason=f"{', '.join(missing)} not installed (extra: train)"))


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with ``dense`` and ``moe``, trained with plain Transformers, and the ``cache`` of their data."""
    folder = Path(os.environ.get("PILOT_TEST_PUBLISHED") or tmp_path_factory.mktemp("published"))
    if not (folder / "moe").is_dir():
        command = [sys.executable, "-m", "tests.weights_training.published", str(folder)]
        subprocess.run(command, check=True, cwd=ROOT, env=environment(), timeout=300, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def beside() -> Iterator[Beside]:
    """The process that loads what the tests name."""
    with Beside() as process:
        yield process


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's pilots run; corpus and tokenizers are made once in it."""
    return tmp_path_factory.mktemp("pilots")
