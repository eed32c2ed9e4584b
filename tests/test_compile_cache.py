"""Cold or warm, from the files of a compile cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.compile_cache import cache_state, count_compiled


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        (0, 7, "cold"),
        (7, 7, "warm"),
        (7, 9, "partly warm"),
        (9, 7, "warm"),
        (0, 0, None),
        (None, 7, None),
        (7, None, None),
    ],
)
def test_state_from_the_counts_around_a_run(before: int | None, after: int | None, state: str | None) -> None:
    assert cache_state(before, after) == state


def test_neffs_are_counted(tmp_path: Path) -> None:
    env = {"TORCH_NEURONX_NEFF_CACHE_DIR": str(tmp_path / "neff")}
    assert count_compiled("neuron", env) == 0
    for name in ("ab/cd/1.neff", "ab/ef/2.neff", "ab/cd/1.lock"):
        (tmp_path / "neff" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "neff" / name).touch()
    assert count_compiled("neuron", env) == 2
    assert count_compiled("neuron", env | {"TORCH_NEURONX_NEFF_DISABLE_CACHE": "1"}) is None


def test_inductors_graphs_are_counted(tmp_path: Path) -> None:
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    assert count_compiled("cpu", env) == 0
    (tmp_path / "fxgraph" / "aa" / "key").mkdir(parents=True)
    (tmp_path / "fxgraph" / "aa" / "key" / "graph").touch()
    (tmp_path / "other").touch()
    assert count_compiled("cuda", env) == 1
    assert count_compiled("cpu", env | {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}) is None
