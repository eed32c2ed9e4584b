"""A checkpoint that already lies where torchtitan looks: refused before launch, unless it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import flags
from harness.old_checkpoints import checkpoint_folder, go_on_from, step_to_resume, steps_in


def plant(dump: Path, *steps: int, mark: str = ".metadata") -> list[str]:
    """Old checkpoints below ``dump``; the options that lead torchtitan there."""
    for step in steps:
        (dump / "checkpoint" / f"step-{step}").mkdir(parents=True)
        (dump / "checkpoint" / f"step-{step}" / mark).write_bytes(b"optimizer dataloader.dp_rank_0")
    return ["--checkpoint.enable", "--dump_folder", str(dump)]


@pytest.mark.parametrize("mark", [".metadata", "model.safetensors.index.json"])
def test_an_old_checkpoint_is_refused_and_named(tmp_path: Path, mark: str) -> None:
    options = plant(tmp_path / "dump", 5, 10, mark=mark)
    with pytest.raises(ValueError, match=r"already holds checkpoints \(step 5, 10\): .* go on from step 10"):
        step_to_resume(options, tmp_path / "own", resume=False)


def test_a_step_to_go_on_from(tmp_path: Path) -> None:
    options = plant(tmp_path / "dump", 5, 10)
    assert step_to_resume(options, tmp_path / "own", resume=True) == 10
    assert step_to_resume([*options, "--checkpoint.load_step=5"], tmp_path / "own", resume=True) == 5
    (tmp_path / "dump" / "checkpoint" / "step-10" / ".metadata").write_bytes(b"model weights")
    with pytest.raises(ValueError, match="step 10 in .* holds the model alone"):
        step_to_resume(options, tmp_path / "own", resume=True)
    assert step_to_resume([*options, "--checkpoint.load_step=5"], tmp_path / "own", resume=True) == 5


def test_of_step_0_the_model_is_enough(tmp_path: Path) -> None:
    options = plant(tmp_path / "dump", 0)
    (tmp_path / "dump" / "checkpoint" / "step-0" / ".metadata").write_bytes(b"model weights")
    assert step_to_resume(options, tmp_path / "own", resume=True) == 0


def test_a_requeued_job_goes_on_from_what_can_be_gone_on_from(tmp_path: Path) -> None:
    plant(tmp_path, 2, 4, 6)
    folder = tmp_path / "checkpoint"
    (folder / "step-6" / ".metadata").write_bytes(b"model weights")
    assert go_on_from(folder, before=8, attempt=1) == (4, ["step-6 is now attempt-1-of-6: the model alone"])
    assert steps_in(folder) == [2, 4]
    assert (folder / "attempt-1-of-6" / ".metadata").read_bytes() == b"model weights"
    assert go_on_from(folder, before=4, attempt=2) == (2, ["step-4 is now attempt-2-of-4: nothing was left to train"])
    assert go_on_from(folder, before=4, attempt=3) == (2, [])
    (folder / "step-2" / ".metadata").rename(folder / "step-2" / "model.safetensors.index.json")
    assert go_on_from(folder, before=4, attempt=3) == (None, ["step-2 is now attempt-3-of-2: the model alone"])
    assert go_on_from(tmp_path / "nowhere", before=4, attempt=1) == (None, [])


def test_a_fresh_folder_is_not(tmp_path: Path) -> None:
    (tmp_path / "dump" / "checkpoint" / "step-7").mkdir(parents=True)  # cut off: torchtitan does not take it either
    (tmp_path / "dump" / "checkpoint" / "other").mkdir()
    options = ["--checkpoint.enable", f"--dump_folder={tmp_path / 'dump'}"]
    assert step_to_resume(options, tmp_path / "own", resume=False) is None
    assert step_to_resume([], tmp_path / "own", resume=False) is None


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="resume=true, but there is no checkpoint in .*own/checkpoint\n  resume=true"):
        step_to_resume([], tmp_path / "own", resume=True)
    options = [*plant(tmp_path / "dump", 5), "--checkpoint.load_step", "6"]
    with pytest.raises(ValueError, match=r"load_step=6: .* holds step 5"):
        step_to_resume(options, tmp_path / "own", resume=True)


def test_every_way_to_lead_there(tmp_path: Path) -> None:
    own = tmp_path / "runs" / "pilot" / "RUN_ID" / "dump"
    assert checkpoint_folder([], own) == own / "checkpoint"
    assert checkpoint_folder(["--checkpoint.folder=/old"], own) == Path("/old")
    assert checkpoint_folder(["--checkpoint.folder", "../../old"], own) == tmp_path / "runs" / "pilot" / "old"
    assert checkpoint_folder(["--dump-folder=/a", "--dump_folder", "/b"], own) == Path("/b/checkpoint")
    assert checkpoint_folder(["--dump_folder=s3://bucket/a"], own) is None


def test_steps_are_found_as_torchtitan_finds_them(tmp_path: Path) -> None:
    plant(tmp_path, 9, 100)
    (tmp_path / "checkpoint" / "old-step-3-copy").mkdir()
    (tmp_path / "checkpoint" / "old-step-3-copy" / ".metadata").touch()
    assert steps_in(tmp_path / "checkpoint") == [3, 9, 100]
    assert steps_in(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], None),
        (["--a.b=1"], "1"),
        (["--a.b", "1"], "1"),
        (["--a.b"], ""),
        (["--a.b", "--c"], ""),
        (["--a-b=1", "--a.b=2", "--a.b=3"], "3"),
        (["x", "a.b=1", "--a.bc=1"], None),
    ],
)
def test_options_as_people_write_them(options: list[str], expected: str | None) -> None:
    assert flags.value(options, "a.b") == expected


def test_switches() -> None:
    assert flags.is_on(["--a.b"], "a.b")
    assert flags.is_on(["--a.b=True"], "a.b")
    for off in ([], ["--a.no-b"], ["--a.no_b"], ["--a.b=False"], ["--a.b", "false"]):
        assert not flags.is_on(off, "a.b")
