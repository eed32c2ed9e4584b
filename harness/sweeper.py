"""``hydra/sweeper=interleaved``: repeats the arms of ``key=a,b`` in interleaved blocks, and resumes what is unfinished.

Pilots run one after the other, in order, whatever the launcher: side by side they would disturb each other's times.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction

from harness.plan import ConfigError
from harness.plugin import put_into_namespace
from harness.preflight import refuse_impossible
from harness.rundir import RunDir, claimed
from harness.sweep import view
from harness.sweep.jobs import Job, Settings, Sweep, plan_sweep
from harness.sweep.resume import circumstances, expect, match_runs, refuse_to_mix, sweep_runs
from harness.terminal import make_console, show_sweep

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.console import Console

    from harness.pilot import Outcome
    from harness.schema import PilotConfig

GROUP, NAME = "hydra/sweeper", "interleaved"
PLUGIN = "hydra_plugins.titan_pilot"
"""Name of this module for Hydra (``register``)."""


@dataclass
class InterleavedConf:
    """``hydra.sweeper`` of an interleaved sweep; on the command line ``replicates=`` and ``sweep.*`` (``Settings``)."""

    _target_: str = f"{PLUGIN}.InterleavedSweeper"
    replicates: int = 1
    order: str = Settings.order
    start_seed: int | None = Settings.start_seed
    vary_seed: bool = Settings.vary_seed
    mix: bool = Settings.mix
    params: dict[str, str] = field(default_factory=dict)
    """What an experiment sweeps over; the command line comes on top."""


class InterleavedSweeper(Sweeper):
    """Runs the jobs of a :class:`~harness.sweep.jobs.Sweep` that are not finished yet."""

    __module__ = PLUGIN

    def __init__(self, params: dict[str, str], **settings: Any) -> None:
        self.params = dict(params)
        self.settings = Settings(**settings)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hydra.core.plugins import Plugins

        self.config, self.loader = config, hydra_context.config_loader
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Plan, show the plan, run what is missing, show what came out.

        Raises:
            ConfigError: the sweep cannot be run, or would mix what cannot be compared.
            KeyboardInterrupt: it was interrupted; what is finished stays, and it was said how to resume.
        """
        sweep = plan_sweep(self._arms(arguments), self.settings, self._compose)
        for arm in sweep.arms:
            refuse_impossible(arm.plan)
        console = make_console()
        done, _ = match_runs(sweep.jobs, sweep_runs(sweep.directory, sweep.id))
        now = circumstances(sweep.arms[0].plan)
        if self._queues:
            del now["hardware"]  # that of the machine where this is typed, not of the nodes
        if not self.settings.mix:
            refuse_to_mix(done.values(), now)
        todo = view.unfinished(sweep.jobs, done)
        expected = expect(sweep, todo, Path(sweep.config.runs))
        view.show_plan(console, sweep, done, expected, dirty=bool(now["git"].get("dirty")))
        if sweep.config.dry_run:
            view.show_dry_run(console, sweep, done)
        else:
            sweep.directory.mkdir(parents=True, exist_ok=True)
            with claimed(RunDir(sweep.directory), "sweep") as alone:
                if not alone:  # it would start the same pilots
                    raise ConfigError(f"another sweep is running in {sweep.directory}: wait for its end, or end it")
                self._save(Path(self.config.hydra.sweep.dir))
                self._run(console, sweep, todo, now)

    def _run(self, console: Console, sweep: Sweep, todo: Sequence[Job], now: dict[str, Any]) -> None:
        outcomes: dict[int, Outcome] = {}
        try:
            if self._queues and todo:
                outcomes |= zip((job.slot.order for job in todo), self._submit(todo), strict=True)
                todo = ()
            for job in todo:
                if not self.settings.mix:
                    _refuse_changed_code(job, now)
                view.show_job(console, job, job.slot.order + 1, len(sweep.jobs))
                outcomes[job.slot.order] = self._launch(job)
        except KeyboardInterrupt:
            finished = _show_result(console, sweep, outcomes)
            view.show_interrupted(console, sweep, finished)
            raise
        except ConfigError:
            _show_result(console, sweep, outcomes)
            raise
        _show_result(console, sweep, outcomes)

    @property
    def _queues(self) -> bool:
        """Whether pilots run elsewhere, in order all the same (``hydra/launcher=slurm``)."""
        return getattr(self.launcher, "queues", False)

    def _submit(self, jobs: Sequence[Job]) -> list[Outcome]:
        """All pilots to the queue at once."""
        returned = self.launcher.launch([list(job.overrides) for job in jobs], initial_job_idx=jobs[0].slot.order)
        return [each.return_value for each in returned]

    def _launch(self, job: Job) -> Outcome:
        """One pilot. A defect of the harness ends this job with its traceback, and the others go on."""
        from harness.pilot import Outcome

        (returned,) = self.launcher.launch([list(job.overrides)], initial_job_idx=job.slot.order)
        try:
            return returned.return_value
        except Exception as error:
            traceback.print_exception(error)
            return Outcome(None, "failed", f"{type(error).__name__}: {error}", 1, job.plan.name)

    # -- Hydra --------------------------------------------------------------------------------------------------------

    def _arms(self, arguments: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
        """All combinations of the swept values: what is swept as typed, and all overrides."""
        from hydra.core.override_parser.overrides_parser import OverridesParser

        texts = [f"{key}={value}" for key, value in self.params.items()] + list(arguments)
        values: dict[str, list[str]] = {}
        swept: list[str] = []
        for override in OverridesParser.create(config_loader=self.loader).parse_overrides(texts):
            key = override.get_key_element()
            swept = [name for name in swept if name != key]  # a later override replaces an earlier one
            if not override.is_sweep_override():
                values[key] = [override.get_value_element_as_str()]
            elif override.is_discrete_sweep():
                values[key] = list(override.sweep_string_iterator())
                swept.append(key)
            else:
                raise ConfigError(f"{override.input_line}: a list of values was expected, e.g. {key}=a,b")
        combinations = itertools.product(*([(key, text) for text in texts] for key, texts in values.items()))
        return [
            (
                " ".join(f"{key}={text}" for key, text in combination if key in swept),
                tuple(f"{key}={text}" for key, text in combination),
            )
            for combination in combinations
        ]

    def _compose(self, overrides: Sequence[str]) -> PilotConfig:
        from omegaconf import OmegaConf, open_dict

        config = self.loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            del config["hydra"]
        return OmegaConf.to_object(config)

    def _save(self, directory: Path) -> None:
        """The composed configuration of the sweep, where Hydra's own sweeper puts it."""
        from omegaconf import OmegaConf

        directory.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, directory / "multirun.yaml")


def register() -> None:
    """Make ``hydra/sweeper=interleaved`` known to Hydra."""
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins

    put_into_namespace(__name__, PLUGIN)
    ConfigStore.instance().store(group=GROUP, name=NAME, node=InterleavedConf)
    Plugins.instance().register(InterleavedSweeper)


def _refuse_changed_code(job: Job, now: dict[str, Any]) -> None:
    code = circumstances(job.plan)["git"]
    if code != now["git"]:
        raise ConfigError(
            f"the code changed while the sweep ran: {_short(now['git'])} when it began, {_short(code)} now\n"
            "  restore it and start the sweep again, which runs what is missing, or mix with sweep.mix=true"
        )


def _short(code: dict[str, Any]) -> str:
    changes = f" with changes {code.get('changes', '')}".rstrip() if code.get("dirty") else ""
    return f"{str(code.get('commit', 'no commit'))[:10]}{changes}"


def _show_result(console: Console, sweep: Sweep, outcomes: dict[int, Outcome]) -> int:
    """The table of all jobs, those finished earlier included; returns how many are finished."""
    from harness.pilot import Outcome

    done, failed = match_runs(sweep.jobs, sweep_runs(sweep.directory, sweep.id))
    shown: list[Outcome] = []
    runs: dict[int, RunDir | None] = {}
    for job in sweep.jobs:
        run = done.get(job.slot.order) or failed.get(job.slot.order)
        status = run.status() if run else None
        if job.slot.order in outcomes and job.slot.order not in done:
            outcome = outcomes[job.slot.order]
        elif status is not None:
            outcome = Outcome(run, status.state, status.reason, status.exit_code or 0, job.plan.name)
        else:
            outcome = Outcome(None, "not run", "", 0, job.plan.name)
        shown.append(outcome)
        runs[job.slot.order] = run
    show_sweep(console, shown, [(job.slot.block, f"{job.arm.letter} {job.arm}") for job in sweep.jobs])
    view.show_arms(console, sweep, runs)
    return len(done)
