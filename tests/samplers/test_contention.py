"""Which samples make a contention warning, and which do not."""

from __future__ import annotations

from typing import Any

import pytest

from harness.samplers import find_contention


def sample(second: int, **parts: dict[str, Any]) -> dict[str, Any]:
    """A quiet sample of a run that uses 2 of 8 cores, with changes."""
    whole = {
        "host": {"cores": 8, "cpu_pct": 30.0, "load_1min": 2.1, "numa_nodes": 1},
        "ranks": {"processes": 3, "cores": 2.0, "rss_gib": 4.0, "unpinned": 3},
        "others": {"cores": 0.05, "busiest": []},
    }
    for part, values in parts.items():
        whole[part] = whole[part] | values
    return {"time": f"2026-11-30T10:00:{second:02d}+00:00", "kind": "host", **whole}


def run(disturbed: int = 0, of: int = 10, **parts: dict[str, Any]) -> list[dict[str, Any]]:
    """``of`` samples, the last ``disturbed`` with changes."""
    return [sample(i, **(parts if i >= of - disturbed else {})) for i in range(of)]


def whats(samples: list[dict[str, Any]]) -> list[str]:
    return [contention.what for contention in find_contention(samples)]


def test_a_quiet_host_gives_no_warning() -> None:
    assert whats(run()) == []
    assert whats([]) == []


def test_another_process_that_uses_a_core() -> None:
    others = {"cores": 1.3, "busiest": [{"pid": 77, "name": "stress", "cores": 1.2}]}
    (found,) = find_contention(run(4, others=others))
    assert (found.what, found.samples, found.of, found.since) == ("others", 4, 10, "2026-11-30T10:00:06+00:00")
    assert "1.3 of 8 cores" in found.message
    assert "stress (pid 77)" in found.message


@pytest.mark.parametrize(("disturbed", "of"), [(1, 3), (2, 10)])
def test_a_passing_disturbance_is_no_warning(disturbed: int, of: int) -> None:
    assert whats(run(disturbed, of, others={"cores": 5.0})) == []


def test_less_than_a_core_matters_only_where_none_is_spare() -> None:
    others = {"cores": 0.6}
    assert whats(run(5, others=others)) == []
    assert whats(run(5, others=others, host={"cpu_pct": 97.0})) == ["others"]


def test_a_compiler_outside_the_run() -> None:
    others = {"cores": 0.7, "busiest": [{"pid": 9, "name": "neuronx-cc", "cores": 0.7}]}
    (found,) = find_contention(run(1, others=others))
    assert found.what == "compiling"
    assert "neuronx-cc" in found.message


def test_load_above_the_cores() -> None:
    assert whats(run(5, host={"load_1min": 9.0})) == []  # 1.1 a core
    assert whats(run(5, host={"load_1min": 12.0})) == ["load"]


def test_unpinned_ranks_matter_on_several_numa_nodes_only() -> None:
    assert whats(run(10, host={"numa_nodes": 2})) == ["numa"]
    assert whats(run(10, host={"numa_nodes": 2}, ranks={"unpinned": 0})) == []
    assert whats(run(10, host={"numa_nodes": 2}, ranks={"unpinned": None})) == []


def test_samples_of_devices_and_samples_without_numbers_are_passed_over() -> None:
    assert whats([{"kind": "neuron", "others": {"cores": 9}}] * 5 + [{"kind": "host", "host": None}] * 5) == []
