"""What is checked before anything is started, and the dry run that shows it."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.identity import check_identity, promise_mismatches
from harness.manifest import versions
from harness.plan import TESTED_ON_TRAINIUM, ConfigError, Plan
from harness.terminal import show_dry_run
from harness.training import command, environment, make_spec

if TYPE_CHECKING:
    from rich.console import Console

LOG_BYTES_PER_STEP = 1_000
MIN_FREE_BYTES = 200 * 2**20


@dataclass(frozen=True)
class Finding:
    """One line of the preflight: ok, warning, error or skipped."""

    verdict: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.verdict:<8} {self.name:<10} {self.text}"


def refuse_impossible(plan: Plan) -> None:
    """The cheap part, before every launch.

    Raises:
        ConfigError: the path would train another model than it says, or there is no room for the run's record.
    """
    if wrong := promise_mismatches(plan.config.path):
        raise ConfigError(f"path {plan.config.path.name} would train another model than it says: {'; '.join(wrong)}")
    disk = check_disk(plan)
    if disk.verdict == "error":
        raise ConfigError(disk.text)


def check_disk(plan: Plan) -> Finding:
    """Free space where runs are written, against the log's estimate."""
    place = Path(plan.config.runs)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    needed = MIN_FREE_BYTES + plan.config.train.steps * LOG_BYTES_PER_STEP
    text = f"{free / 2**30:,.1f} GiB free in {plan.config.runs}, {needed / 2**30:.1f} GiB needed"
    return Finding("ok" if free >= needed else "error", "disk", text)


def check_versions(plan: Plan) -> Finding:
    """Installed versions; on Trainium against those that were tested there."""
    installed = versions()
    names = (
        [*TESTED_ON_TRAINIUM] if plan.config.platform.device == "neuron" else ["torch", "torchtitan", "transformers"]
    )
    parts, verdict = [], "ok"
    for name in names:
        found, tested = installed.get(name), TESTED_ON_TRAINIUM[name]
        note = f" (tested there: {tested})" if plan.config.platform.device == "neuron" and found != tested else ""
        verdict = "warning" if note or found is None else verdict
        parts.append(f"{name} {found or 'not installed'}{note}")
    return Finding(verdict, "versions", ", ".join(parts))


def describe_layout(plan: Plan) -> Finding:
    """Ranks, cores and how the global batch is made up."""
    train, lnc = plan.config.train, plan.config.platform.lnc
    batch = (
        f"{train.global_batch_size} = {train.local_batch_size} x {plan.ranks} ranks x {plan.micro_batches} micro steps"
    )
    text = (
        f"{plan.ranks} ranks{f', LNC {lnc}' if lnc else ''}; global batch {batch}; sequence {train.seq_len}; "
        f"{plan.tokens_per_step:,} tokens a step; data {plan.config.data.name}"
    )
    return Finding("ok", "layout", text)


def dry_run(plan: Plan, console: Console) -> int:
    """Show command, environment, identity and preflight; start nothing. Returns the exit code.

    Raises:
        ConfigError: the model that would be built is not the one that the path promises.
    """
    run = Path(plan.config.runs) / plan.config.experiment_name / "RUN_ID"
    spec = make_spec(plan, run, prepare=importlib.util.find_spec("tokenizers") is not None)
    identity = check_identity(spec, plan.config.path)
    findings = [
        describe_layout(plan),
        Finding({"pass": "ok", "fail": "error"}.get(identity.verdict, "skipped"), "identity", identity.reason),
        check_versions(plan),
        check_disk(plan),
    ]
    if identity.identity is not None and identity.verdict == "pass":
        promise = plan.config.path.promise
        kind = "as the path promises" if not plan.rehearsal else f"rehearsal of {promise.total_params:,} parameters"
        findings.insert(2, Finding("ok", "promise", f"computed from {plan.config.path.published.source}: {kind}"))
    show_dry_run(
        console, plan, command(plan, spec, run), environment(plan, run), [str(finding) for finding in findings]
    )
    if identity.verdict == "fail":
        raise ConfigError(identity.reason)
    return 0
