"""Pilots that plan, train and prove as the real ones, but train within the test's process: seconds less each."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from harness.beside import Beside
from harness.checks import Check
from harness.data import DataConfig
from harness.logs import Row
from harness.paths import load_path
from harness.plan import Plan, make_plan
from harness.proof import Proof
from harness.rundir import RunDir
from harness.schema import (
    ChecksConfig,
    ExportConfig,
    InitConfig,
    PilotConfig,
    PlatformConfig,
    ScaleConfig,
    TrainConfig,
)
from harness.titan.spec import TitanSpec
from harness.training import make_spec
from harness.watch import End
from tests.titan.inprocess import Trained, train
from tests.weights_training.published import LAYERS

FINISHED = End(exit_code=0)
KIND = {"native_4b": "dense", "hf_4b": "dense", "moe_nki": "moe"}


@dataclass
class Pilot:
    """One training and what its weights showed."""

    plan: Plan
    spec: TitanSpec
    run: RunDir
    trained: Trained
    checks: dict[str, Check]

    @property
    def export(self) -> Path:
        return self.run.path / "export"

    @property
    def probe(self) -> Path:
        """The trained model's logits, where it was exported; a copy, since evidence goes when all is well."""
        return self.run.path / "probe.npz"

    def check(self, name: str) -> tuple[str, str]:
        return self.checks[name].verdict, self.checks[name].evidence


def planned(
    name: str, folder: Path, init: Path | None, *, sequences: int = 2, theta: float = 5e6, **changes: Any
) -> tuple[Plan, TitanSpec, RunDir]:
    """Plan and spec of a rehearsal with 2 layers on one rank; native_4b with the RoPE base of the published model."""
    path = load_path(name)
    path.published.rope_theta = 1e6 if name == "moe_nki" else theta
    train = TrainConfig(steps=changes.pop("steps", 2), local_batch_size=2, global_batch_size=sequences)
    train = dataclasses.replace(train, **changes.pop("train", {}))
    config = PilotConfig(
        path=path,
        platform=PlatformConfig(name="cpu", device="cpu", num_ranks=1),
        data=DataConfig(name="pydoc", kind="pydoc"),
        init=InitConfig(mode="pretrained", path=str(init)) if init else InitConfig(),
        scale=ScaleConfig(num_layers=LAYERS),
        train=train,
        export=changes.pop("export", ExportConfig(enabled=False)),
        checks=changes.pop("checks", ChecksConfig()),
        runs=str(folder / "runs"),
    )
    assert not changes, changes
    plan, run = make_plan(config), RunDir.create(folder / "runs", "pilot", name)
    return plan, make_spec(plan, run.path, prepare=True), run


def proved(plan: Plan, spec: TitanSpec, run: RunDir, trained: Trained, beside: Beside) -> dict[str, Check]:
    """The checks of a training that finished, by name."""
    proof = Proof(plan, spec, run, _beside=beside)
    return {check.name: check for check in proof.checks(rows_of(trained), FINISHED)}


def rows_of(trained: Trained) -> list[Row]:
    return [Row(kind="train", segment=0, step=step, loss=loss) for step, loss in enumerate(trained.losses, start=1)]


def pilot(name: str, folder: Path, init: Path | None, beside: Beside, **changes: Any) -> Pilot:
    """Plan, train in this process, prove."""
    plan, spec, run = planned(name, folder, init, **changes)
    trained = train(spec)
    if (logits := run.path / "evidence" / "logits.npz").is_file():
        shutil.copy(logits, run.path / "probe.npz")
    return Pilot(plan, spec, run, trained, proved(plan, spec, run, trained, beside))


def logits_of(run: RunDir) -> numpy.ndarray:
    """What a training left behind, where its evidence was kept."""
    with numpy.load(run.path / "evidence" / "logits.npz") as file:
        return file["logits"]
