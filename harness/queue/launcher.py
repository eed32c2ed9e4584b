"""``hydra/launcher=slurm``: all jobs of a multirun into Slurm's queue at once, then wait for them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction

from harness import slurm
from harness.plan import ConfigError, make_plan
from harness.plugin import put_into_namespace
from harness.queue.follow import wait
from harness.queue.submit import Pilot, Settings, Submitted, submit
from harness.terminal import make_console

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.console import Console

    from harness.pilot import Outcome

PLUGIN = "hydra_plugins.titan_pilot_queue"
"""Name of this module for Hydra (``register``)."""
Listener: TypeAlias = "Callable[[Outcome, bool], None]"
_listeners: list[Listener] = []
_received: list[signal.Signals] = []
"""Signals that have come, kept by the application."""


class SlurmLauncher(Launcher):
    """Submits what the sweeper gives it, waits, and returns what became of it."""

    __module__ = PLUGIN
    queues = True
    """The jobs run elsewhere and later: a sweeper hands them over all at once."""

    def __init__(self, **settings: Any) -> None:
        settings["setup"] = tuple(settings.get("setup") or ())
        try:
            self.settings = Settings(**settings)
        except TypeError as error:
            raise ConfigError(f"hydra.launcher: {str(error).rpartition(') ')[2] or error}") from error

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config, self.loader = config, hydra_context.config_loader

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """One return value, an Outcome, for each job.

        Raises:
            KeyboardInterrupt: it was interrupted; the jobs were cancelled, or left in the queue, as the user said.
        """
        console = make_console()
        plans = [make_plan(self._compose(overrides)) for overrides in job_overrides]
        runs = Path(plans[0].config.runs)
        pilots = [
            Pilot(name=plan.name, overrides=tuple(overrides), nodes=plan.place.num_nodes)
            for plan, overrides in zip(plans, job_overrides, strict=True)
        ]
        if plans[0].config.tracking.enabled and not plans[0].config.tracking.uri:
            console.print(
                "tracking=local is one SQLite file that all nodes would write: tracking=server, or tracking=off and "
                "`python -m harness.sync` afterwards, are safer",
                style="yellow",
            )
        if plans[0].config.dry_run:
            raise ConfigError("dry_run=true shows the plan where it is typed: leave out hydra/launcher=slurm")
        jobs = submit(pilots, self.settings, runs)
        for job in jobs:
            console.print(f"job {job.job_id}: {', '.join(pilot.name for pilot in job.pilots)}", markup=False)
        console.print("`python -m harness.queue status` shows them", style="dim")
        outcomes = self._outcomes(jobs, runs, console)
        for outcome, overrides in zip(outcomes, job_overrides, strict=True):
            for listen in _listeners:
                listen(outcome, any(override.startswith("sweep=") for override in overrides))
        return [
            JobReturn(overrides=list(overrides), status=JobStatus.COMPLETED, _return_value=outcome)
            for overrides, outcome in zip(job_overrides, outcomes, strict=True)
        ]

    def _outcomes(self, jobs: list[Submitted], runs: Path, console: Console) -> list[Outcome]:
        from harness.pilot import Outcome

        if self.settings.detach:
            return [
                Outcome(None, "queued", f"Slurm job {job.job_id}", 0, pilot.name)
                for job in jobs
                for pilot in job.pilots
            ]
        try:
            return wait(jobs, runs, console, poll_s=self.settings.poll_s)
        except KeyboardInterrupt:
            _cancel(jobs, console)
            raise

    def _compose(self, overrides: Sequence[str]) -> Any:
        from omegaconf import OmegaConf, open_dict

        config = self.loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            del config["hydra"]
        typed = OmegaConf.to_object(config)
        if typed.platform.name == "auto":
            raise ConfigError(
                "platform=auto looks at the machine where this is typed: name what the nodes are, e.g. "
                "platform=trn2_48xlarge"
            )
        return typed


def _cancel(jobs: Sequence[Submitted], console: Console) -> None:
    """Ask whether the jobs are to be cancelled. Without a terminal nobody can be asked and they are; after a connection
    was lost they stay."""
    known = slurm.own_jobs() or {}
    left = [job.job_id for job in jobs if not ((state := known.get(job.job_id)) and state.ended)]
    leave = _received[:1] == [signal.SIGHUP]
    if left and not leave and sys.stdin.isatty():
        leave = not _yes(f"cancel {len(left)} job{'s' * (len(left) > 1)}? [Y/n] ")
    if leave:
        console.print(f"left in the queue: {' '.join(left)}; `python -m harness.queue status` shows them")
    elif slurm.cancel(left):
        console.print(f"cancelled: {' '.join(left) or 'nothing was left'}")
    else:
        console.print(f"could not be cancelled: scancel {' '.join(left)}", style="red")


def _yes(question: str) -> bool:
    """Another Ctrl-C means yes as well; the end of the input does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(question).strip().lower() in ("", "y", "yes")
    except KeyboardInterrupt:
        return True
    except EOFError:
        return False
    finally:
        signal.signal(signal.SIGINT, before)


def register(listen: Listener, received: list[signal.Signals]) -> None:
    """Make the launcher known to Hydra, and tell ``listen`` of each outcome, and whether it belongs to an interleaved
    sweep. ``received``: the signals that come."""
    global _received
    from hydra.core.plugins import Plugins

    put_into_namespace(__name__, PLUGIN)
    _listeners[:] = [listen]
    _received = received
    Plugins.instance().register(SlurmLauncher)
