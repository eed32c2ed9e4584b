"""``hydra/sweeper=interleaved``: repeats the arms of ``key=a,b`` in interleaved blocks, and resumes what is unfinished.

Pilots run one after the other, in order, whatever the launcher: side by side they would disturb each other's times.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction

from harness.plan import ConfigError
from harness.rundir import RunDir
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
"""Hydra takes plugins from this namespace only; the class is registered under it, so no such package is needed."""


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
        self.params = params
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
        console = make_console()
        done, _ = match_runs(sweep.jobs, sweep_runs(sweep.directory, sweep.id))
        now = circumstances(sweep.arms[0].plan)
        if not self.settings.mix:
            refuse_to_mix(done.values(), now)
        todo = view.unfinished(sweep.jobs, done)
        expected = expect(sweep, todo, Path(sweep.config.runs))
        view.show_plan(console, sweep, done, expected, dirty=bool(now["git"].get("dirty")))
        if sweep.config.dry_run:
            view.show_dry_run(console, sweep, done)
        else:
            with _alone(sweep):
                self._save(Path(self.config.hydra.sweep.dir))
                self._run(console, sweep, todo, now)

    def _run(self, console: Console, sweep: Sweep, todo: Sequence[Job], now: dict[str, Any]) -> None:
        outcomes: dict[int, Outcome] = {}
        try:
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

    def _launch(self, job: Job) -> Outcome:
        """One pilot. A defect of the harness ends this job with its traceback, and the others go on."""
        from hydra.core.utils import JobStatus

        from harness.pilot import Outcome

        (returned,) = self.launcher.launch([list(job.overrides)], initial_job_idx=job.slot.order)
        if returned.status is JobStatus.COMPLETED:
            return returned.return_value
        error = returned._return_value
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
            values[key] = [override.get_value_element_as_str()]
            swept = [name for name in swept if name != key]
            if override.is_sweep_override():
                if not override.is_discrete_sweep():
                    raise ConfigError(f"{override.input_line}: a list of values was expected, e.g. {key}=a,b")
                values[key] = list(override.sweep_string_iterator())
                swept.append(key)
        arms = []
        for combination in itertools.product(*([(key, text) for text in texts] for key, texts in values.items())):
            arms.append(
                (
                    " ".join(f"{key}={text}" for key, text in combination if key in swept),
                    tuple(f"{key}={text}" for key, text in combination),
                )
            )
        return arms

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

    ConfigStore.instance().store(group=GROUP, name=NAME, node=InterleavedConf)
    Plugins.instance().register(InterleavedSweeper)


def _alone(sweep: Sweep):
    """Held while the sweep runs: a second one in the same directory would start the same pilots."""
    from contextlib import contextmanager

    from filelock import FileLock, Timeout

    @contextmanager
    def held():
        sweep.directory.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(sweep.directory / ".sweep.lock", timeout=0):
                yield
        except Timeout:
            raise ConfigError(f"another sweep is running in {sweep.directory}: wait for its end, or end it") from None

    return held()


def _refuse_changed_code(job: Job, now: dict[str, Any]) -> None:
    code = circumstances(job.plan)["git"]
    if code != now["git"]:
        raise ConfigError(
            f"the code changed while the sweep ran: {_short(now['git'])} when it began, {_short(code)} now\n"
            "  restore it and start the sweep again, which runs what is missing, or mix with sweep.mix=true"
        )


def _short(code: dict[str, Any]) -> str:
    return f"{str(code.get('commit', 'no commit'))[:10]}{' with changes' if code.get('dirty') else ''}"


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


def settings_override(argument: str) -> str | None:
    """``replicates=4`` and ``sweep.order=blocked`` as overrides of this sweeper; None for every other argument.

    Raises:
        ConfigError: ``sweep.`` with a key that does not exist.
    """
    key, equals, value = argument.lstrip("+").partition("=")
    if not equals or not (key == "replicates" or key.startswith("sweep.")):
        return None
    name = key.removeprefix("sweep.")
    names = [item.name for item in fields(Settings)]
    if name not in names:
        raise ConfigError(f"there is no key {key}: sweep has {', '.join(names)}")
    return f"hydra.sweeper.{name}={value}"
