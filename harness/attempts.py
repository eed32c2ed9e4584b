"""The run of a pilot: a new one, or, when Slurm has put its job back into the queue, the same one once more."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from harness import flags, rundir
from harness.initial import Initial
from harness.manifest import config_hash
from harness.meeting import JobRecord, drop_record, index_in_job, job_key, read_record, write_record
from harness.nodes import Place
from harness.old_checkpoints import go_on_from, step_to_resume
from harness.plan import ConfigError, Plan
from harness.recorder import Recorder
from harness.rundir import RunDir
from harness.training import DUMP
from harness.weights_plan import saved_to

ATTEMPTS = "attempts"
NEW, AGAIN, DONE = "new", "again", "done"


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A run directory to record in. ``finished``: it is complete, from before the job was requeued."""

    run: RunDir
    attempt: int = 1
    finished: bool = False
    initial: Initial
    """What the training starts from: as planned, or a checkpoint of an earlier attempt."""
    aside: tuple[str, ...] = ()
    """Checkpoints of earlier attempts that are out of the way, in words."""


def open_run(plan: Plan) -> Opened:
    """Make a run directory, or take up the one that this job had before it was requeued.

    Raises:
        ConfigError: checkpoints that are not this run's lie where torchtitan will look.
    """
    key = job_key(plan)
    record = read_record(Path(plan.config.runs), key) if key else None
    what = decide(plan, record)
    if what == NEW or record is None:
        _refuse_old_checkpoints(plan)
        return Opened(
            initial=plan.initial, run=RunDir.create(Path(plan.config.runs), plan.config.experiment_name, plan.name)
        )
    run = RunDir(Path(plan.config.runs) / record.run)
    if what == DONE:
        return Opened(run=run, attempt=record.attempt, finished=True, initial=plan.initial)
    set_aside(run, record.attempt)
    initial, aside = _go_on(plan, run, record.attempt)
    return Opened(run=run, attempt=record.attempt + 1, initial=initial, aside=tuple(aside))


def _refuse_old_checkpoints(plan: Plan) -> None:
    """What a plan leaves open for a job that was requeued: here it turned out to begin a run of its own."""
    if plan.place.job is None or not plan.place.job.restarts or plan.config.resume:
        return
    try:
        step_to_resume(plan.config.train.flags, Path(plan.config.runs) / "RUN_ID" / DUMP, resume=False)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _go_on(plan: Plan, run: RunDir, attempt: int) -> tuple[Initial, list[str]]:
    """Where this attempt goes on; the folder was empty when the first one began, or its steps were asked for."""
    folder = saved_to(plan, run.path)
    wanted = flags.value(plan.config.train.flags, "checkpoint.load_step")
    if folder is None or wanted not in (None, "-1"):
        return plan.initial, []
    step, aside = go_on_from(folder, before=plan.config.train.steps, attempt=attempt)
    if step is None:
        return plan.initial, aside
    return replace(plan.initial, resumed_step=step, resumed_from=folder), aside


def decide(plan: Plan, record: JobRecord | None) -> str:
    """What this start is, from what the job's earlier start left: a new run, the same again, or nothing to do.

    A pilot that counts is not repeated where the queue started it; any other one that somebody requeued after its end
    runs anew.
    """
    job = plan.place.job
    if record is None or job is None or job.restarts <= record.restarts or record.config_hash != config_hash(plan):
        return NEW
    status = RunDir(Path(plan.config.runs) / record.run).status()
    if status is None:
        return NEW
    if status.state == rundir.FINISHED and status.exit_code == 0:
        return NEW if record.index is None else DONE
    return AGAIN


def set_aside(run: RunDir, attempt: int) -> None:
    """Move the record of an attempt to ``attempts/<number>``; checkpoints stay, so that the training goes on from them.

    The status stays as well until it is replaced: without one a directory is no run.
    """
    folder = run.file(ATTEMPTS) / str(attempt)
    folder.mkdir(parents=True, exist_ok=True)
    for item in sorted(run.path.iterdir()):
        if item.name == rundir.STATUS:
            shutil.copy2(item, folder / item.name)
        elif item.name not in (ATTEMPTS, DUMP) and not item.name.endswith(".lock"):
            item.rename(folder / item.name)


def discard(plan: Plan, opened: Opened) -> None:
    """Remove the directory of a run that never began; one that began before its job was requeued stays."""
    if opened.attempt == 1:
        shutil.rmtree(opened.run.path, ignore_errors=True)
    if (key := job_key(plan)) is not None:
        drop_record(Path(plan.config.runs), key)


def note_start(recorder: Recorder, plan: Plan, opened: Opened) -> None:
    """What is decided about the weights before anything trains, as events."""
    if plan.initial.adopted:
        values = {item.key: {"file": item.file, "path": item.model} for item in plan.initial.adopted}
        recorder.note("config_adopted", directory=str(plan.initial.directory), values=values)
    for what in opened.aside:
        recorder.note("checkpoint_set_aside", message=what)


def announce(plan: Plan, opened: Opened, place: Place, *, ready: bool) -> None:
    """Say which run this start is: to the other nodes, and to the job's next start."""
    if (key := job_key(plan)) is None:
        return
    run, job = opened.run, place.job
    record = JobRecord(
        run=f"{run.experiment}/{run.run_id}",
        config_hash=config_hash(plan),
        rdzv_id=place.rdzv_id,
        restarts=job.restarts if job else 0,
        attempt=opened.attempt,
        endpoint=place.rdzv_endpoint,
        root_comm=place.root_comm,
        ready=ready,
        node=job.node if job else "",
        index=index_in_job(),
    )
    write_record(Path(plan.config.runs), key, record)
