"""A real training with an old checkpoint in its way: refused, then gone on from because that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.rundir import find_runs
from tests.conftest import SHALLOW, call

pytestmark = pytest.mark.titan


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
    run = find_runs(tmp_path / "runs")[-1]
    assert [row["step"] for row in run.rows()] == [3, 4]
    assert run.config()["init"]["resumed_step"] == 2
    assert run.manifest()["init"]["resumed_from"] == str(dump / "checkpoint")
    checks = {check["name"]: check for check in run.checks()}
    assert checks["initial_weights"]["verdict"] == "pass"
    assert f"the log names {dump / 'checkpoint' / 'step-2'}" in checks["initial_weights"]["evidence"]
