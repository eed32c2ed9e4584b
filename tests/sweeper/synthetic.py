"""Planned sweeps without Hydra, and run directories as a pilot would have left them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from harness.manifest import config_hash
from harness.plan import Plan
from harness.rundir import FINISHED, RunDir, Status
from harness.schema import PilotConfig
from harness.streams import to_jsonable
from harness.sweep.jobs import Job, Settings, Sweep, plan_sweep
from harness.sweep.resume import circumstances

CONF = Path(__file__).resolve().parent.parent.parent / "conf"


def compose_in(runs: Path):
    """What Hydra does for these tests: a CPU rehearsal of native_4b, with dotted overrides on top."""

    def compose(overrides: Sequence[str]) -> PilotConfig:
        base = OmegaConf.merge(
            OmegaConf.structured(PilotConfig),
            {
                "path": OmegaConf.load(CONF / "path" / "native_4b.yaml"),
                "platform": OmegaConf.load(CONF / "platform" / "cpu.yaml"),
                "runs": str(runs),
                "scale": {"num_layers": 2},
            },
        )
        for override in overrides:
            key, _, value = override.partition("=")
            if key == "kernel":
                value = OmegaConf.load(CONF / "kernel" / f"{value}.yaml")
            OmegaConf.update(base, key, value)
        return OmegaConf.to_object(base)

    return compose


def two_arms(runs: Path, values: Sequence[str] = ("baseline", "nki_rope"), *more: str, **settings: Any) -> Sweep:
    arms = [(f"kernel={value}", (f"kernel={value}", *more)) for value in values]
    return plan_sweep(arms, Settings(**({"replicates": 2} | settings)), compose_in(runs))


def leave_run(job: Job, of: Sweep, /, *, order: int | None = None, **facts: Any) -> RunDir:
    """The run directory of a job, as far as a sweep reads it."""
    assert job.plan.config.sweep == of.id
    config = job.plan.config if order is None else replace(job.plan.config, order=order)
    return leave(replace(job.plan, config=config), **facts)


def leave(
    plan: Plan, *, state: str = FINISHED, reason: str = "", exit_code: int = 0, seconds: float = 60.0, **manifest: Any
) -> RunDir:
    """The run directory of a pilot that took so many seconds; ``manifest`` replaces what its manifest says."""
    run = RunDir.create(Path(plan.config.runs), plan.config.experiment_name, plan.name)
    run.write_text("config.yaml", yaml.safe_dump(to_jsonable(plan.config)))
    facts = {"config_hash": config_hash(plan), "sweep": plan.config.sweep, **circumstances(plan)}
    run.write_json("manifest.json", facts | manifest)
    started = datetime.fromisoformat("2026-10-20T10:00:00+00:00")
    times = {"started": started.isoformat(), "ended": (started + timedelta(seconds=seconds)).isoformat()}
    run.write_status(Status(state=state, reason=reason, exit_code=exit_code, **times))
    return run
