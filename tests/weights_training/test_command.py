"""The whole of it as a user calls it: two ranks, given weights in several files, export, reload, copy, MLflow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import assert_no_process, call, only_run

pytestmark = pytest.mark.titan


def test_a_pilot_from_published_weights_shows_them_in_checks_and_mlflow(published: Path, tmp_path: Path) -> None:
    import sqlite3

    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    called = call(
        "harness", "+path=moe_nki", "scale.num_layers=2", "train.steps=3", f"runs={runs}", "checks=strict",
        "init=pretrained", f"init.path={published / 'moe'}", f"export.copy_to={elsewhere}",
    )  # fmt: skip
    assert called.exit_code == 0, called.stdout + called.stderr
    assert "first loss compared with plain Transformers after the training: about" in called.stdout
    run = only_run(runs)
    checks = {check["name"]: check for check in run.checks()}
    assert {check["verdict"] for check in checks.values()} == {"pass"}
    names = ("first_step_loss", "reference_loss_diff", "rope_theta_of_weights", "export_reload", "export_copy")
    assert set(names) <= set(checks)
    assert "the same 1,024 tokens" in checks["reference_loss_diff"]["evidence"]  # both ranks' batches
    index = json.loads((run.path / "export" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1  # in as many files as the weights came in
    assert {file.name for file in (elsewhere / run.run_id).iterdir()} == {
        file.name for file in (run.path / "export").iterdir()
    }
    assert not (run.path / "evidence").exists()
    assert_no_process(run)
    with sqlite3.connect(runs / "mlflow.db") as database:
        metrics = dict(database.execute("select key, value from metrics where key like 'check/%'"))
        tags = dict(database.execute("select key, value from tags where key like 'check/%'"))
    assert metrics["check/first_step_loss"] == next(run.rows())["loss"]
    assert metrics["check/reference_loss_diff"] < 1e-2
    assert {tags[f"check/{name}"] for name in names} == {"pass"}
