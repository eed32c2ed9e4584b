"""Room on the disk: asked for before a pilot by what it will write, and looked at while it runs (no torch)."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from harness.paths import load_path
from harness.plan import ConfigError, Plan, make_plan
from harness.preflight import check_disk, checkpoint_bytes, refuse_impossible, short_of_disk
from harness.schema import LaunchConfig, PilotConfig, PlatformConfig, TrainConfig

TRN2 = PlatformConfig(name="trn2_48xlarge", device="neuron", chip="trn2", num_ranks=64, num_chips=16, lnc=2)
Usage = namedtuple("Usage", "total used free")
PARAMS = 4_022_468_096


def plan(flags: list[str], steps: int = 1000, runs: Path = Path("/nowhere/runs")) -> Plan:
    return make_plan(
        PilotConfig(
            path=load_path("native_4b"),
            platform=TRN2,
            train=TrainConfig(steps=steps, flags=flags),
            launch=LaunchConfig(min_free_mib=100),
            runs=str(runs),
        )
    )


STATES = {
    "none": ([], 0),
    "load only": (["--checkpoint.enable", "--checkpoint.load_only"], 0),
    "last": (["--checkpoint.enable", "--checkpoint.interval", "5000"], 12 * PARAMS),
    "two": (["--checkpoint.enable"], 2 * 12 * PARAMS),
    "ten of twenty": (["--checkpoint.enable", "--checkpoint.interval=50"], 10 * 12 * PARAMS),
    "three of twenty": (
        ["--checkpoint.enable", "--checkpoint.interval=50", "--checkpoint.keep_latest_k", "3"],
        3 * 12 * PARAMS,
    ),
    "export": (
        ["--checkpoint.enable", "--checkpoint.interval", "1000", "--checkpoint.last_save_in_hf"],
        (12 + 4) * PARAMS,
    ),
}


@pytest.mark.parametrize(("flags", "expected"), STATES.values(), ids=STATES.keys())
def test_what_checkpoints_take(flags: list[str], expected: int) -> None:
    assert checkpoint_bytes(plan(flags)) == expected


def test_too_little_room_is_refused_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--checkpoint.enable", "--checkpoint.interval", "1000", "--checkpoint.last_save_in_hf"]
    needed = 200 * 2**20 + 1000 * 1000 + 16 * PARAMS
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, needed))
    assert check_disk(plan(flags)).verdict == "ok"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, needed - 1))
    with pytest.raises(ConfigError, match=r"60\.1 GiB free in .*, 60\.1 GiB needed \(59\.9 of it for checkpoints"):
        refuse_impossible(plan(flags))
    assert check_disk(plan([])).verdict == "ok"


def test_room_is_looked_for_where_the_runs_will_be(tmp_path: Path) -> None:
    assert check_disk(plan([], runs=tmp_path / "not" / "yet")).verdict == "ok"


def test_short_of_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 100 * 2**20))
    assert short_of_disk(Path("runs"), 100) == ""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 100 * 2**20 - 1))
    assert short_of_disk(Path("runs"), 100) == "disk nearly full: 100 MiB free in runs, launch.min_free_mib=100"


def test_file_system_that_is_gone_is_left_to_the_first_write(tmp_path: Path) -> None:
    assert short_of_disk(tmp_path / "gone", 100) == ""
