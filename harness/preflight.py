"""What is checked before anything is started, and the dry run that shows it."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness import hub
from harness.identity import check_identity, promise_mismatches
from harness.initial import refuse_wrong_keys
from harness.manifest import versions
from harness.plan import TESTED_ON_TRAINIUM, ConfigError, Plan
from harness.privacy import redact_text
from harness.terminal import show_dry_run
from harness.titan.spec import CheckpointSpec
from harness.training import command, environment, make_spec
from harness.weights_plan import exports, reference_plan, why_no_export

if TYPE_CHECKING:
    from rich.console import Console

LOG_BYTES_PER_STEP = 1_000
BYTES_PER_PARAM, BYTES_PER_STATE = 4, 12
"""float32; a parameter with AdamW's two moments."""


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
    refuse_wrong_weights(plan)
    disk = check_disk(plan)
    if disk.verdict == "error":
        raise ConfigError(disk.text)


def refuse_wrong_weights(plan: Plan) -> None:
    """The headers of the initial weights against the model that will be built; config.json was compared by the plan.

    Raises:
        ConfigError: weights that do not fit, or cannot be had.
    """
    try:
        refuse_wrong_keys(plan.config.init, plan.initial, plan.shape, plan.config.path.name)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error


def describe_weights(plan: Plan) -> Finding:
    """What the training starts from, and that it fits; a hub id that is not on this machine is not downloaded."""
    init, initial = plan.config.init, plan.initial
    if init.mode == "random":
        return Finding("ok", "weights", initial.describe())
    if initial.repository and hub.cached(initial.repository, init.revision, whole=True) is None:
        return Finding("skipped", "weights", f"{initial.describe()}: not in the cache, downloaded when a run starts")
    refuse_wrong_weights(plan)
    dtype = f", stored in {initial.dtype}, kept in float32" if initial.dtype not in (None, "float32") else ""
    return Finding("ok", "weights", f"{initial.describe()}: config.json and all keys fit{dtype}")


def check_disk(plan: Plan) -> Finding:
    """Free space where runs are written, against the estimates for log, checkpoints and export."""
    place = Path(plan.config.runs)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    log, states = plan.config.train.steps * LOG_BYTES_PER_STEP, checkpoint_bytes(plan)
    needed = 2 * plan.config.launch.min_free_mib * 2**20 + log + states
    text = f"{free / 2**30:,.1f} GiB free in {plan.config.runs}, {needed / 2**30:,.1f} GiB needed"
    text += f" ({states / 2**30:,.1f} of it for checkpoints and export)" if states else ""
    return Finding("ok" if free >= needed else "error", "disk", text)


def checkpoint_bytes(plan: Plan) -> int:
    """What torchtitan will save, as its options in ``train.flags`` say, in bytes over all ranks.

    A full state is parameters and AdamW's two moments in float32; of several, keep_latest_k (10 by default) stay.
    """
    flags, params = plan.config.train.flags, plan.shape.num_params()
    initial = reference_plan(plan).wanted and plan.config.init.mode == "random"
    own = (exports(plan) + initial) * 2 * BYTES_PER_PARAM * params  # shards first, which are then put together
    if not _flag(flags, "checkpoint.enable") or _flag(flags, "checkpoint.load_only"):
        return own
    interval = _number(flags, "checkpoint.interval", 500)
    kept = _number(flags, "checkpoint.keep_latest_k", 10) or plan.config.train.steps
    full_states = min(-(-plan.config.train.steps // max(1, interval)), kept)
    export = BYTES_PER_PARAM if _flag(flags, "checkpoint.last_save_in_hf") else 0
    return own + params * (full_states * BYTES_PER_STATE + export)


def _flag(flags: list[str], name: str) -> bool:
    return any(flag.lstrip("-").partition("=")[0] == name for flag in flags)


def _number(flags: list[str], name: str, default: int) -> int:
    """The value of ``--name=1`` or ``--name 1``."""
    for flag, after in zip(flags, [*flags[1:], ""], strict=True):
        key, equals, value = flag.lstrip("-").partition("=")
        if key == name and (value or after).isdigit():
            return int(value if equals else after)
    return default


def short_of_disk(place: Path, min_free_mib: int) -> str:
    """Why a running training has to end for want of space; empty where there is enough."""
    try:
        free = shutil.disk_usage(place).free
    except OSError:  # a file system that is gone shows itself in the first write
        return ""
    if free >= min_free_mib * 2**20:
        return ""
    return f"disk nearly full: {free / 2**20:,.0f} MiB free in {place}, launch.min_free_mib={min_free_mib}"


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
    nodes = plan.place.num_nodes
    ranks = f"{nodes} nodes x {plan.local_ranks} = {plan.ranks:,} ranks" if nodes > 1 else f"{plan.ranks} ranks"
    chips = f" on {plan.chips} chips" if nodes > 1 and plan.chips else ""
    text = (
        f"{ranks}{chips}{f', LNC {lnc}' if lnc else ''}; mesh {plan.mesh}; global batch {batch}; "
        f"sequence {train.seq_len}; {plan.tokens_per_step:,} tokens a step; data {plan.config.data.name}"
    )
    return Finding("ok", "layout", text)


def describe_proof(plan: Plan) -> Finding:
    """What will be shown of the weights: the first loss against plain Transformers, the export loaded again."""
    reference, copy = reference_plan(plan), plan.config.export.copy_to
    loss = f"first loss against {reference.why}" if reference.wanted else f"no reference loss: {reference.why}"
    where = f", copied to {redact_text(copy)}" if copy else ""
    kept = f"last step exported in {plan.config.export.dtype} and loaded again{where}"
    return Finding("ok", "proof", f"{loss}; {kept if exports(plan) else f'no export: {why_no_export(plan)}'}")


def dry_run(plan: Plan, console: Console) -> int:
    """Show command, environment, identity and preflight; start nothing. Returns the exit code.

    Raises:
        ConfigError: the model that would be built is not the one that the path promises.
    """
    run = Path(plan.config.runs) / plan.config.experiment_name / "RUN_ID"
    spec = make_spec(plan, run, prepare=importlib.util.find_spec("tokenizers") is not None)
    adopted = {str(item.field): item.file for item in plan.initial.adopted}
    unloaded = replace(spec, checkpoint=CheckpointSpec())  # a model of the hub has no directory here yet
    identity = check_identity(unloaded, plan.config.path, adopted=adopted)
    findings = [
        describe_layout(plan),
        Finding({"pass": "ok", "fail": "error"}.get(identity.verdict, "skipped"), "identity", identity.reason),
        describe_weights(plan),
        describe_proof(plan),
        check_versions(plan),
        check_disk(plan),
    ]
    if identity.identity is not None and identity.verdict == "pass":
        promise = plan.config.path.promise
        kind = "as the path promises" if not plan.rehearsal else f"rehearsal of {promise.total_params:,} parameters"
        kind += f", but for what was adopted from {plan.config.init.path}: {plan.initial.changes}" if adopted else ""
        findings.insert(2, Finding("ok", "promise", f"computed from {plan.config.path.published.source}: {kind}"))
    places = [plan.place.as_seen_from(rank) for rank in range(plan.place.num_nodes)]
    commands = [command(plan, spec, run, place) for place in places]
    show_dry_run(console, plan, commands, environment(plan, run), [str(finding) for finding in findings])
    if identity.verdict == "fail":
        raise ConfigError(identity.reason)
    return 0
