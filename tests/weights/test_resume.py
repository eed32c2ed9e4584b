"""A real training with an old checkpoint in its way: refused, then gone on from because that was asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.rundir import KILLED, find_runs
from tests.conftest import SHALLOW, call

pytestmark = [pytest.mark.titan, pytest.mark.faults]


def test_refused_then_resumed(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    arguments = ["+path=native_4b", *SHALLOW, f"runs={tmp_path / 'runs'}", "tracking=off", "export.enabled=false"]
    arguments += ["checks.reference_loss=never", "platform.num_ranks=1"]
    options = f"--checkpoint.enable,--checkpoint.interval,2,--checkpoint.no-last-save-model-only,--dump_folder,{dump}"
    first = call("harness", *arguments, "train.steps=2", f"train.flags=[{options}]")
    assert first.exit_code == 0, first.stdout + first.stderr
    assert "random weights from seed 1: nothing is loaded" in first.stdout

    refused = call("harness", *arguments, "train.steps=4", f"train.flags=[{options}]")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"{dump / 'checkpoint'} already holds checkpoints (step 2)" in refused.stderr
    assert len(find_runs(tmp_path / "runs")) == 1

    resumed = call("harness", *arguments, "train.steps=4", f"train.flags=[{options}]", "resume=true")
    assert resumed.exit_code == 0, resumed.stdout + resumed.stderr
    assert f"resumed from step 2 in {dump / 'checkpoint'}" in resumed.stdout
    assert f"weights   {dump / 'checkpoint' / 'step-4'}, 0.00 GB" in resumed.stdout
    run = find_runs(tmp_path / "runs")[-1]
    assert [row["step"] for row in run.rows()] == [3, 4]
    assert run.config()["init"]["resumed_step"] == 2
    assert run.manifest()["init"]["resumed_from"] == str(dump / "checkpoint")
    checks = {check["name"]: check for check in run.checks()}
    assert checks["initial_weights"]["verdict"] == "pass"
    assert f"the log names {dump / 'checkpoint' / 'step-2'}" in checks["initial_weights"]["evidence"]
    assert checks["first_step_loss"]["verdict"] == "skipped"
    assert checks["first_step_loss"]["evidence"].startswith(f"resumed from step 2 in {dump / 'checkpoint'}: no step")
    assert checks["steps_logged"]["value"] == 2


def test_a_requeued_job_goes_on_from_a_full_step(tmp_path: Path) -> None:
    """And not from the last one, which holds the model alone; its losses are those of the first attempt."""
    arguments = ["+path=native_4b", *SHALLOW, f"runs={tmp_path / 'runs'}", "tracking=off", "platform.num_ranks=1"]
    arguments += ["train.steps=6", "train.flags=[--checkpoint.enable,--checkpoint.interval,2]"]
    slurm = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_JOB_NODELIST": "a", "SLURMD_NODENAME": "a"}
    first = call("harness", *arguments, env=slurm)
    assert first.exit_code == 0, first.stdout + first.stderr
    (run,) = find_runs(tmp_path / "runs")
    before = {row["step"]: row["loss"] for row in run.rows()}
    status = run.status()
    assert status is not None
    run.write_status(replace(status, state=KILLED, exit_code=143))  # as if it had been cut off while recording
    again = call("harness", *arguments, env=slurm | {"SLURM_RESTART_COUNT": "1"})
    assert again.exit_code == 0, again.stdout + again.stderr
    (run,) = find_runs(tmp_path / "runs")
    assert {row["step"]: row["loss"] for row in run.rows()} == {step: before[step] for step in (5, 6)}
    assert run.manifest()["init"]["resumed_step"] == 4
    checks = {check["name"]: check for check in run.checks()}
    assert checks["steps_logged"]["evidence"] == "2 of 2 steps that are logged"
    assert {name for name, check in checks.items() if check["verdict"] != "pass"} == {"first_step_loss"}
    said = [event["data"]["message"] for event in run.events() if event["kind"] == "checkpoint_set_aside"]
    assert said == ["step-6 is now attempt-1-of-6: the model alone"]


def test_a_resumed_training_exports_from_where_it_saved(tmp_path: Path) -> None:
    """A dump folder elsewhere, and an export that is compared with the logits of a training that began at step 2."""
    dump = tmp_path / "dump"
    arguments = ["+path=native_4b", *SHALLOW, f"runs={tmp_path / 'runs'}", "tracking=off", "export.enabled=true"]
    arguments += ["platform.num_ranks=1", "checks=strict", "checks.reference_loss=always"]
    options = f"--checkpoint.enable,--checkpoint.interval,2,--checkpoint.folder,kept,--dump_folder,{dump}"
    first = call("harness", *arguments, "train.steps=3", f"train.flags=[{options}]")
    assert first.exit_code == 0, first.stdout + first.stderr
    assert [place.name for place in (dump / "kept").iterdir()] == ["step-2"]  # step 3 is the run's export
    resumed = call("harness", *arguments, "train.steps=4", f"train.flags=[{options}]", "resume=true")
    assert resumed.exit_code == 0, resumed.stdout + resumed.stderr
    assert "first loss compared" not in resumed.stdout
    runs = find_runs(tmp_path / "runs")
    assert [[row["step"] for row in run.rows()] for run in runs] == [[1, 2, 3], [3, 4]]
    for run, skipped in zip(runs, ([], ["first_step_loss", "reference_loss_diff"]), strict=True):
        verdicts = {check["name"]: check["verdict"] for check in run.checks()}
        assert verdicts["export_reload"] == "pass"
        assert [name for name, verdict in verdicts.items() if verdict != "pass"] == skipped
        assert (run.path / "export" / "config.json").is_file()
