"""From pilots to Slurm jobs, through submitit, and what is written down about each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness import slurm
from harness.plan import ConfigError
from harness.queue.task import run_in_order
from harness.rundir import RunDir, now

FOLDER = ".queue"
CHAIN, ALLOCATION = "chain", "allocation"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """``hydra.launcher`` of ``hydra/launcher=slurm``; the meaning of most is that of sbatch's option of the name."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    time_min: int = 60
    """Time limit of one pilot, minutes."""
    exclusive: bool = True
    """Whole nodes: a pilot beside somebody else's job measures both."""
    cpus_per_task: int | None = None
    order: str = CHAIN
    """chain: a job for each pilot, each after the one before, maybe on other nodes (the comparison's gate sees that).
    allocation: one job that runs all pilots one after the other, on the same nodes."""
    requeue: bool = True
    """Whether Slurm may put a job back into the queue, after preemption or the failure of a node. The run goes on as
    another attempt."""
    end_before_s: int = 60
    """How long before the time limit a pilot is asked to end in order, seconds."""
    setup: tuple[str, ...] = ()
    """Shell lines before the pilot, e.g. `[module load efa]`."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further options of sbatch, e.g. `{reservation: pilots}`."""
    detach: bool = False
    """Submit and return at once."""
    poll_s: float = 2.0
    """How often Slurm is asked how the jobs get on, seconds."""


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """One pilot to submit."""

    name: str
    overrides: tuple[str, ...]
    nodes: int


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A job in the queue, and its pilots in the order in which it runs them."""

    job_id: str
    pilots: tuple[Pilot, ...]
    after: str | None
    log: str
    submitted: str


def submit(pilots: Sequence[Pilot], settings: Settings, runs: Path) -> list[Submitted]:
    """Put the pilots into the queue in this order.

    Raises:
        ConfigError: there is no Slurm or no submitit here, the settings are wrong, or Slurm refuses.
    """
    if settings.order not in (CHAIN, ALLOCATION):
        raise ConfigError(f"hydra.launcher.order={settings.order}: one of {CHAIN}, {ALLOCATION} was expected")
    if settings.order == ALLOCATION and len({pilot.nodes for pilot in pilots}) > 1:
        raise ConfigError("one allocation has one number of nodes: hydra.launcher.order=chain, or equal num_nodes")
    if not slurm.available():
        raise ConfigError("hydra/launcher=slurm needs Slurm's commands (squeue, sbatch) here: type it on a login node")
    try:
        import submitit
    except ImportError as error:
        raise ConfigError("hydra/launcher=slurm needs submitit: pip install '.[cluster]'") from error
    groups = [tuple(pilots)] if settings.order == ALLOCATION else [(pilot,) for pilot in pilots]
    jobs: list[Submitted] = []
    try:
        for group in groups:
            executor = submitit.SlurmExecutor(folder=(runs / FOLDER / "logs" / "%j").resolve())
            after = jobs[-1].job_id if jobs else None
            executor.update_parameters(**parameters(group, settings, after))
            job = executor.submit(run_in_order, [list(pilot.overrides) for pilot in group])
            entry = Submitted(job_id=job.job_id, pilots=group, after=after, log=str(job.paths.stdout), submitted=now())
            RunDir(runs / FOLDER).write_json(f"{job.job_id}.json", asdict(entry))
            jobs.append(entry)
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        slurm.cancel([job.job_id for job in jobs])
        said = [line.strip() for line in str(error).splitlines() if "sbatch: error" in line] or [str(error)]
        raise ConfigError(f"Slurm refuses: {said[0].removeprefix('sbatch: error: ')}") from error
    return jobs


def parameters(group: Sequence[Pilot], settings: Settings, after: str | None) -> dict[str, Any]:
    """sbatch's options in submitit's names: one task on each node, which starts torchrun."""
    extra = {"requeue" if settings.requeue else "no-requeue": True} | dict(settings.extra)
    # instead of submitit's SIGUSR2, which would kill the ranks
    extra["signal"] = f"TERM@{settings.end_before_s}"
    given = {
        "job_name": group[0].name if len(group) == 1 else f"{group[0].name}+{len(group) - 1}",
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "constraint": settings.constraint,
        "gres": settings.gres,
        "cpus_per_task": settings.cpus_per_task,
        "exclusive": settings.exclusive or None,
        "dependency": f"afterany:{after}" if after else None,
        "setup": list(settings.setup) or None,
    }
    # since Slurm 22.05 srun does not take over --cpus-per-task, and would bind the task to one core
    cpus = [f"--cpus-per-task={settings.cpus_per_task}"] if settings.cpus_per_task else []
    return {key: value for key, value in given.items() if value is not None} | {
        "nodes": group[0].nodes,
        "ntasks_per_node": 1,
        "time": settings.time_min * len(group),
        "stderr_to_stdout": True,
        "srun_args": [*cpus, "--cpu-bind=none", "--kill-on-bad-exit=0", "--wait=0"],
        "additional_parameters": extra,
    }


def submissions(runs: Path) -> dict[str, Submitted]:
    """What has been submitted from this directory of runs, by job id."""
    found: dict[str, Submitted] = {}
    for file in (runs / FOLDER).glob("*.json"):
        try:
            value = json.loads(file.read_text())
            pilots = tuple(Pilot(**(item | {"overrides": tuple(item["overrides"])})) for item in value["pilots"])
            found[value["job_id"]] = Submitted(**(value | {"pilots": pilots}))
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return found
