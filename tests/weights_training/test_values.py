"""Given weights that are no numbers are named where the first loss is none (no torch)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from harness.data import DataConfig
from harness.logs import Event, Row
from harness.paths import load_path
from harness.plan import Plan, make_plan
from harness.proof import Proof
from harness.rundir import EVENTS, JsonLines, RunDir
from harness.schema import ExportConfig, InitConfig, PilotConfig, PlatformConfig, ScaleConfig
from harness.training import make_spec
from harness.watch import End
from tests.weights.checkpoints import values_of, write

TENSOR = "model.layers.1.mlp.up_proj.weight"


def started_from(place: Path, value: float) -> Plan:
    """A plan of a rehearsal that starts from bfloat16 weights with one such value."""
    path = load_path("native_4b")
    shape = path.rehearsal_shape(num_layers=2)
    values = values_of(shape)
    values[TENSOR][3, 5] = value
    write(place / "weights", shape, values)
    return make_plan(
        PilotConfig(
            path=path,
            platform=PlatformConfig(name="cpu", device="cpu", num_ranks=1),
            data=DataConfig(kind="pydoc"),
            init=InitConfig(mode="pretrained", path=str(place / "weights")),
            scale=ScaleConfig(num_layers=2),
            export=ExportConfig(enabled=False),
        )
    )


def found(plan: Plan, run: Path, loss: float | None) -> list[tuple[str, str]]:
    """Verdict and evidence of the check, where it was made; a loss of None stands for a log without step 1."""
    rows = [] if loss is None else [Row(kind="train", segment=0, step=1, loss=loss)]
    proof = Proof(plan, make_spec(plan, run, prepare=False), RunDir(run))
    checks = proof.checks(rows, End(exit_code=1))
    return [(check.verdict, check.evidence) for check in checks if check.name == "initial_values"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_nan_in_the_weights_is_named_with_its_tensor(value: float, tmp_path: Path) -> None:
    plan = started_from(tmp_path, value)
    verdict = [("fail", f"{TENSOR} has 1 of 10,240 values NaN or infinite (BF16)")]
    assert found(plan, tmp_path, math.nan) == verdict
    assert found(plan, tmp_path, 7.0) == []  # nothing is read where there is no need
    assert found(plan, tmp_path, None) == []  # the training ended of something else
    events = JsonLines(tmp_path / EVENTS)
    events.append(Event(kind="nonfinite", line=1, data={"step": 2, "value": "nan"}))
    assert found(plan, tmp_path, None) == []
    events.append(Event(kind="nonfinite", line=2, data={"step": 1, "value": "nan"}))
    assert found(plan, tmp_path, None) == verdict  # torchtitan ends before it logs such a loss
    resumed = replace(plan, initial=replace(plan.initial, resumed_step=2))
    assert found(resumed, tmp_path, None) == []


def test_sound_weights_are_not_blamed(tmp_path: Path) -> None:
    ((verdict, evidence),) = found(started_from(tmp_path, 1.0), tmp_path, math.nan)
    assert (verdict, evidence.endswith("bytes read, no NaN, nothing infinite")) == ("pass", True)
