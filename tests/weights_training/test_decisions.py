"""What is decided about weights before launch, and what is said of them at the end (no torch)."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.checks import Check, failed_names
from harness.data import DataConfig
from harness.logs import Row
from harness.paths import load_path
from harness.plan import ConfigError, Plan, make_plan
from harness.preflight import checkpoint_bytes, describe_proof
from harness.proof import Proof
from harness.rundir import RunDir
from harness.schema import (
    ChecksConfig,
    ExportConfig,
    LaunchConfig,
    PilotConfig,
    PlatformConfig,
    TrainConfig,
)
from harness.terminal import show_export
from harness.training import make_spec
from harness.watch import End
from harness.weights_plan import checkpoint_spec, exports, reference_plan

CPU = PlatformConfig(name="cpu", device="cpu", num_ranks=2)
REMOTE = ["--dump_folder", "s3://bucket/dump"]
TRN2 = PlatformConfig(name="trn2_48xlarge", device="neuron", chip="trn2", num_ranks=64, num_chips=16, lnc=2)


def plan_of(platform: PlatformConfig = CPU, name: str = "native_4b", **fields: Any) -> Plan:
    return make_plan(PilotConfig(path=load_path(name), platform=platform, data=DataConfig(kind="pydoc"), **fields))


def pretrained(plan: Plan) -> Plan:
    """The same plan with given weights, wherever they are."""
    init = replace(plan.config.init, mode="pretrained")
    return replace(plan, config=replace(plan.config, init=init))


def test_a_rehearsal_exports_and_full_scale_only_where_asked(tmp_path: Path) -> None:
    assert exports(plan_of())
    assert not exports(plan_of(TRN2))
    assert exports(plan_of(TRN2, export=ExportConfig(enabled=True)))
    assert exports(plan_of(TRN2, export=ExportConfig(copy_to="memory://bucket")))
    assert not exports(plan_of(export=ExportConfig(enabled=False)))
    assert not exports(plan_of(launch=LaunchConfig(command=["sleep", "1"])))
    assert not exports(plan_of(train=TrainConfig(flags=["--checkpoint.enable"])))  # the user's own checkpoints
    remote = plan_of(train=TrainConfig(flags=REMOTE))
    assert not exports(remote)
    assert "no export: --dump_folder is no directory of this machine" in describe_proof(remote).text
    assert "no export: export.enabled=true does it" in describe_proof(plan_of(TRN2)).text
    spec = checkpoint_spec(plan_of(), tmp_path)
    assert (spec.export_last, spec.evidence, spec.keep_initial) == (True, str(tmp_path / "evidence"), False)
    spec = checkpoint_spec(plan_of(TRN2), tmp_path)
    assert (spec.enable, spec.evidence) == (False, None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"checks": ChecksConfig(reference_loss="yes")}, "checks.reference_loss=yes: one of auto, always, never"),
        ({"export": ExportConfig(dtype="int8")}, "export.dtype=int8: one of float32, bfloat16, float16"),
        ({"export": ExportConfig(enabled=False, copy_to="memory://b")}, "export.enabled=false leaves out"),
        ({"export": ExportConfig(copy_to="nosuch://b")}, "export.copy_to=nosuch://... cannot be used"),
        (
            {"export": ExportConfig(enabled=True), "train": TrainConfig(flags=REMOTE)},
            "needs a directory of this machine",
        ),
        (
            {"export": ExportConfig(copy_to="/etc/passwd/x")},
            "copy_to=/etc/passwd/x cannot be used: /etc/passwd is no d",
        ),
        ({"export": ExportConfig(copy_to="file:///etc/passwd/x")}, "copy_to=file://... cannot be used: /etc/passwd is"),
    ],
)
def test_impossible_wishes_are_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        checkpoint_spec(plan_of(**fields), tmp_path)


def test_the_reference_is_computed_unasked_where_it_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    random = reference_plan(plan_of())
    assert not random.wanted
    assert "checks.reference_loss=always saves and compares them" in random.why
    small = reference_plan(pretrained(plan_of()))
    assert small.wanted
    assert small.why == "plain Transformers after the training: about 0.0 GB of memory and 5 s on 2 cores"
    large = reference_plan(pretrained(plan_of(TRN2)))
    assert not large.wanted
    assert large.why == (  # 5 x 4.02e9 bytes + 1 GB; 2 x 4.02e9 x 262,144 FLOP at 4e10
        "too large to be done unasked, about 21.0 GB of memory and 879 min on 2 cores: "
        "checks.reference_loss=always does it"
    )
    asked = reference_plan(plan_of(TRN2, checks=ChecksConfig(reference_loss="always")))
    assert asked.wanted
    assert asked.why.endswith("879 min on 2 cores, initial weights of 16.1 GB saved for it")
    assert not reference_plan(pretrained(plan_of(checks=ChecksConfig(reference_loss="never")))).wanted


@pytest.mark.parametrize("verdict", ["pass", "fail", "skipped"])
def test_weights_that_know_little_are_told_from_weights_that_were_not_loaded(
    verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pretrained(plan_of(export=ExportConfig(enabled=False)))
    monkeypatch.setattr(Proof, "reference_loss", lambda *unused: Check("reference_loss_diff", verdict, ""))
    proof = Proof(made, make_spec(made, tmp_path, prepare=False), RunDir(tmp_path))
    said = {}
    for loss in (6.7, 6.5):
        band, *_ = proof.checks([Row(kind="train", segment=0, step=1, loss=loss)], End(exit_code=1))
        said[loss] = (band.verdict, "plain Transformers gives the same" in band.evidence)
    assert said == {6.7: ("fail", verdict == "pass"), 6.5: ("pass", False)}


@pytest.mark.parametrize("mode", ["random", "pretrained"])
def test_a_resumed_training_shows_nothing_of_the_weights_that_were_asked_for(mode: str, tmp_path: Path) -> None:
    """Its first logged step is not step 1 of these weights; step 0 has one, but of the checkpoint's."""
    made = plan_of(checks=ChecksConfig(reference_loss="always", strict=True), export=ExportConfig(enabled=False))
    made = pretrained(made) if mode == "pretrained" else made
    assert checkpoint_spec(made, tmp_path).keep_initial == (mode == "random")
    resumed = replace(made, initial=replace(made.initial, resumed_step=0, resumed_from=tmp_path / "old"))
    spec = checkpoint_spec(resumed, tmp_path)
    assert (spec.keep_initial, spec.evidence) == (False, None)
    assert not reference_plan(resumed).wanted
    proof = Proof(resumed, make_spec(resumed, tmp_path, prepare=False), RunDir(tmp_path))
    checks = proof.checks([Row(kind="train", segment=0, step=1, loss=3.0)], End(exit_code=0))
    why = f"resumed from step 0 in {tmp_path / 'old'}: no step here is the first of the weights asked for"
    assert [(check.name, check.verdict, check.evidence) for check in checks] == [
        ("first_step_loss", "skipped", why),
        ("reference_loss_diff", "skipped", why),
    ]
    assert checkpoint_bytes(resumed) == 0


def test_an_export_needs_its_room_twice_while_it_is_put_together() -> None:
    assert checkpoint_bytes(plan_of(TRN2)) == 0
    assert checkpoint_bytes(plan_of(TRN2, export=ExportConfig(enabled=True))) == 8 * 4_022_468_096


def test_a_failure_that_is_only_reported_is_not_one_of_the_run() -> None:
    checks = [Check("a", "fail", "", blocking=False), Check("b", "fail", ""), Check("c", "pass", "")]
    assert failed_names(checks) == ["b"]


@pytest.mark.parametrize(("strict", "step", "expected"), [(False, 1, "fail"), (True, 1, "fail"), (True, 5, "skipped")])
def test_the_band_fails_the_run_only_with_checks_strict(strict: bool, step: int, expected: str, tmp_path: Path) -> None:
    plan = plan_of(checks=ChecksConfig(strict=strict), export=ExportConfig(enabled=False))
    proof = Proof(plan, make_spec(plan, tmp_path, prepare=False), RunDir(tmp_path))
    checks = proof.checks([Row(kind="train", segment=0, step=step, loss=5.0)], End(exit_code=0))
    assert [(check.name, check.verdict, check.blocking) for check in checks] == [("first_step_loss", expected, strict)]
    if expected == "fail":
        assert checks[0].evidence.startswith("5.0000, expected 7.44 to 7.84 (random: ln(2,048) = 7.62 + 0.01 ")
        assert checks[0].value == 5.0


@pytest.mark.parametrize(
    ("platform", "price", "copied", "reminded"),
    [(CPU, None, False, False), (CPU, 2.0, False, True), (TRN2, None, False, True), (TRN2, None, True, False)],
)
def test_rented_machines_take_the_weights_with_them(
    platform: PlatformConfig, price: float | None, copied: bool, reminded: bool, tmp_path: Path
) -> None:
    from rich.console import Console

    run = RunDir(tmp_path)
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "model.safetensors").write_bytes(bytes(20_000_000))
    run.write_json("checks.json", [Check("export_copy", "pass" if copied else "fail", "")])
    out = io.StringIO()
    show_export(Console(file=out, width=200), plan_of(replace(platform, price_per_hour=price)), run)
    assert f"{tmp_path / 'export'}, 0.02 GB" in out.getvalue()
    assert ("go with this instance when it ends" in out.getvalue()) == reminded
