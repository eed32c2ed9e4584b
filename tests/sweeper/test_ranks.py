"""Arms that are compared share the number of ranks, unless it was typed or is what is compared."""

from __future__ import annotations

from typing import Any

import pytest

from harness.rundir import find_runs
from tests.sweeper.conftest import rows

TOLD = "platform.num_ranks=1 in every arm"


@pytest.fixture(params=["2.13.0", "2.14.0"])
def torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """hf_4b trains on one CPU rank before 2.14, on two since."""
    monkeypatch.setattr("harness.plan.torch_version", lambda: request.param)
    return request.param


def test_paths_have_the_ranks_that_all_of_them_can_have(torch: str, harness: Any) -> None:
    code, out, err = harness("+experiment=paths", "dry_run=true")
    assert (code, err) == (0, "")
    assert {row[6] for row in rows(out)} == ({"1"} if torch == "2.13.0" else {"2"})
    assert (TOLD in out) == (torch == "2.13.0")
    assert len({row[8] for row in rows(out)}) == 1  # tokens per step


def test_ranks_that_were_typed_stay(torch: str, harness: Any) -> None:
    code, out, _ = harness("+experiment=paths", "path=native_4b,moe_nki", "platform.num_ranks=2", "dry_run=true")
    assert code == 0
    assert {row[6] for row in rows(out)} == {"2"}
    assert TOLD not in out


def test_swept_ranks_stay(harness: Any) -> None:
    code, out, _ = harness("+path=native_4b", "platform.num_ranks=1,2", "replicates=2", "dry_run=true")
    assert code == 0
    assert [row[6] for row in rows(out)] == ["1", "2", "2", "1"]
    assert TOLD not in out


def test_each_further_arm_gets_its_command(pilots: Any, harness: Any, tmp_path: Any) -> None:
    code, out, _ = harness("+experiment=paths", "replicates=1")
    assert code == 0
    commands = [line for line in out.splitlines() if line.startswith("compare ")]
    assert [line.split("--where")[0].split("compare ", 2)[-1].strip() for line in commands] == [
        "--baseline path=hf_4b --candidate path=native_4b",
        "--baseline path=hf_4b --candidate path=moe_nki",
    ]
    assert len({run.config()["platform"]["num_ranks"] for run in find_runs(tmp_path / "runs")}) == 1
