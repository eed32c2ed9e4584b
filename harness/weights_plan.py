"""What a run is going to show about its weights, decided before anything is started (no torch)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from harness.batch_loss import HEAD_TOKENS
from harness.export import EXPORT, refuse_copy
from harness.old_checkpoints import checkpoint_folder
from harness.plan import ConfigError, Plan
from harness.reload import ROOM
from harness.titan.spec import EXPORT_DTYPES, CheckpointSpec

EVIDENCE = "evidence"
"""Directory of a run for what the training process leaves to be compared with; kept where a comparison fails."""
REFERENCE = ("auto", "always", "never")
FLOPS_PER_CORE = 20e9
"""A guess of float32 matrix products on one core, to announce the reference's time; 15 to 60 were seen."""
AUTO_S, AUTO_BYTES = 60.0, 8e9
"""What ``checks.reference_loss=auto`` is ready to spend."""


@dataclass(frozen=True)
class ReferencePlan:
    """Whether the reference loss is going to be computed; ``why`` says what it takes, or why not."""

    wanted: bool
    why: str


def reference_plan(plan: Plan) -> ReferencePlan:
    """Decide by ``checks.reference_loss`` and size, before anything is started."""
    asked, random = plan.config.checks.reference_loss, plan.config.init.mode == "random"
    params, active = plan.shape.num_params(), plan.shape.num_params(active_only=True)
    memory = ROOM * 4 * params + 3 * 4 * HEAD_TOKENS * plan.shape.vocab
    seconds = 5 + 2 * active * plan.tokens_per_step / (FLOPS_PER_CORE * _cores())
    cost = f"about {memory / 1e9:,.1f} GB of memory and {_duration(seconds)} on {_cores()} core{'s' * (_cores() > 1)}"
    if plan.initial.resumed_step is not None:
        return ReferencePlan(False, f"{plan.initial.describe()}: no step here is the first of the weights asked for")
    if asked == "never":
        return ReferencePlan(False, "checks.reference_loss=never")
    if plan.config.launch.command:
        return ReferencePlan(False, "another command than torchrun leaves no first batch to compute with")
    if asked == "always":
        saved = f", initial weights of {4 * params / 1e9:,.1f} GB saved for it" if random else ""
        return ReferencePlan(True, f"plain Transformers after the training: {cost}{saved}")
    if random:
        return ReferencePlan(False, "random weights are not kept: checks.reference_loss=always saves and compares them")
    if seconds > AUTO_S or memory > AUTO_BYTES:
        return ReferencePlan(False, f"too large to be done unasked, {cost}: checks.reference_loss=always does it")
    return ReferencePlan(True, f"plain Transformers after the training: {cost}")


def exports(plan: Plan) -> bool:
    return not why_no_export(plan)


def why_no_export(plan: Plan) -> str:
    """Why the last step is not exported; empty where it is: as asked, else where a copy is asked for, and in a
    rehearsal.

    An export takes the place of the last full state, so that it is not done unasked beside checkpoints of the user's.
    """
    config = plan.config
    if config.launch.command:
        return "another command than torchrun saves nothing"
    if config.export.enabled is not None:
        return "" if config.export.enabled else "export.enabled=false"
    if config.export.copy_to:
        return ""
    if not plan.rehearsal:
        return "export.enabled=true does it"
    if any(flag.lstrip("-").startswith("checkpoint.") for flag in config.train.flags):
        return "train.flags saves its own checkpoints"
    return "" if saved_to(plan, Path()) is not None else "--dump_folder is no directory of this machine"


def saved_to(plan: Plan, run: Path) -> Path | None:
    """The folder that torchtitan saves to, absolute; None for a place that is no directory of this machine."""
    return checkpoint_folder(plan.config.train.flags, run.resolve() / "dump")


def saved_weights(plan: Plan, run: Path) -> list[tuple[Path, int]]:
    """Directories with the weights of a run, each with its size in bytes."""
    folder = saved_to(plan, run)
    places = [run / EXPORT, *(sorted(folder.glob("step-*")) if folder is not None else [])]
    sizes = [(place, sum(file.stat().st_size for file in place.rglob("*") if file.is_file())) for place in places]
    return [(place, size) for place, size in sizes if size]


def checkpoint_spec(plan: Plan, run: Path) -> CheckpointSpec:
    """What the training loads, saves and leaves as evidence.

    Raises:
        ConfigError: a value that is none, or a place for the copy that this machine cannot write to.
    """
    config = plan.config
    _one_of("checks.reference_loss", config.checks.reference_loss, REFERENCE)
    _one_of("export.dtype", config.export.dtype, EXPORT_DTYPES)
    if config.export.copy_to and config.export.enabled is False:
        raise ConfigError("export.copy_to copies the export, which export.enabled=false leaves out: drop one of them")
    if config.export.copy_to:
        try:
            refuse_copy(config.export.copy_to)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    reference, export = reference_plan(plan).wanted, exports(plan)
    if export and saved_to(plan, run) is None:
        raise ConfigError(
            "an export needs a directory of this machine: --dump_folder and --checkpoint.folder in train.flags without "
            "://, or export.enabled=false"
        )
    return CheckpointSpec(
        initial_load_path=plan.initial.place,
        export_last=export,
        export_dtype=config.export.dtype,
        evidence=str(run.resolve() / EVIDENCE) if reference or export else None,
        keep_initial=reference and config.init.mode == "random",
    )


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}={value}: one of {', '.join(allowed)} was expected")


def _cores() -> int:
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return int(limit) if limit.isdigit() and int(limit) else len(os.sched_getaffinity(0))


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
