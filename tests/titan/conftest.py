"""Tests of the training process: those marked ``titan`` are left out where torch or torchtitan is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PACKAGES = ("torch", "torchtitan", "transformers")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if not missing:
        return
    skip = pytest.mark.skip(reason=f"{', '.join(missing)} not installed (extra: train)")
    for item in items:
        if item.get_closest_marker("titan"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the whole session: corpus, tokenizer and model configurations are made once in it."""
    return tmp_path_factory.mktemp("titan")
