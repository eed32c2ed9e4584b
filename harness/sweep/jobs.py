"""The pilots of a sweep: what is swept, what each job is told, and by what a run is recognised as one of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

from harness.manifest import config_hash
from harness.plan import ConfigError, Plan, make_plan
from harness.schema import PilotConfig
from harness.sweep.order import INTERLEAVED, Slot, arm_letter, plan_slots, random_start

RANKS = "platform.num_ranks"
SET_BY_THE_SWEEP = ("replicate", "block", "order", "sweep")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How arms are repeated and ordered: ``replicates=`` and ``sweep.*`` of the command line."""

    replicates: int = 1
    order: str = INTERLEAVED
    start_seed: int | None = None
    """Draws the arm that is first; null: the first one named."""
    vary_seed: bool = False
    """Replicate r of every arm trains with seed train.seed + r."""
    mix: bool = False
    """Go on although code, versions or hardware are not those of the runs that are there."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One of the settings that are compared."""

    letter: str
    settings: str
    """What it is swept by, as typed: ``kernel=nki_rope``. Two arms may have the same (A/A)."""
    overrides: tuple[str, ...]
    plan: Plan

    def __str__(self) -> str:
        return self.settings or self.plan.name


@dataclass(frozen=True, kw_only=True)
class Job:
    """One pilot of a sweep."""

    slot: Slot
    arm: Arm
    plan: Plan
    """With replicate, block, order and seed in its configuration."""
    overrides: tuple[str, ...]
    """For Hydra."""

    @cached_property
    def key(self) -> tuple[str, int, int]:
        """What makes a run this job's, whenever and in which place it ran: configuration hash, replicate, block."""
        return config_hash(self.plan), self.slot.replicate, self.slot.block


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A planned sweep."""

    id: str
    """The same for the same arms in the same order, however many replicates: those are added to the ones there are."""
    settings: Settings
    arms: tuple[Arm, ...]
    jobs: tuple[Job, ...]
    shared_ranks: int | None = None
    """Ranks that every arm was given, since by themselves the arms would use different numbers."""

    @property
    def config(self) -> PilotConfig:
        return self.arms[0].plan.config

    @property
    def directory(self) -> Path:
        """Where its runs are, together with others of the same experiment."""
        return Path(self.config.runs) / self.config.experiment_name

    @property
    def identical(self) -> bool:
        """Whether several arms are the same, which measures the noise floor (A/A)."""
        return len({arm.settings for arm in self.arms}) < len(self.arms)


def plan_sweep(
    arms: Sequence[tuple[str, tuple[str, ...]]], settings: Settings, compose: Callable[[Sequence[str]], PilotConfig]
) -> Sweep:
    """From the arms to the jobs, each planned, none started.

    Args:
        arms: what each is swept by, and all of its overrides.
        compose: the configuration that overrides stand for.

    Raises:
        ConfigError: an arm that cannot be run, or settings that contradict each other.
    """
    _check(arms, settings)
    planned = _plan_arms(arms, compose)
    shared_ranks = _ranks_to_share(planned)
    if shared_ranks:
        planned = _plan_arms([(swept, (*given, f"{RANKS}={shared_ranks}")) for swept, given in arms], compose)
    if len({(arm.plan.config.runs, arm.plan.config.experiment_name) for arm in planned}) > 1:
        raise ConfigError("arms of one sweep share runs= and experiment_name=: those cannot be swept")
    start = 0 if settings.start_seed is None else random_start(len(planned), settings.start_seed)
    try:
        slots = plan_slots(len(planned), settings.replicates, order=settings.order, start=start)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    identity = sweep_id(planned, settings)
    jobs = tuple(_job(planned[slot.arm], slot, settings, identity) for slot in slots)
    return Sweep(id=identity, settings=settings, arms=tuple(planned), jobs=jobs, shared_ranks=shared_ranks)


def sweep_id(arms: Sequence[Arm], settings: Settings) -> str:
    """Name of a sweep: its experiment, and a hash of its arms and of the order in which they run."""
    facts = [[config_hash(arm.plan) for arm in arms], settings.order, settings.start_seed, settings.vary_seed]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:8]
    return f"{arms[0].plan.config.experiment_name}-{digest}"


def _plan_arms(
    arms: Sequence[tuple[str, tuple[str, ...]]], compose: Callable[[Sequence[str]], PilotConfig]
) -> list[Arm]:
    return [
        Arm(letter=arm_letter(number), settings=swept, overrides=overrides, plan=_plan(swept, compose(overrides)))
        for number, (swept, overrides) in enumerate(arms)
    ]


def _ranks_to_share(arms: Sequence[Arm]) -> int | None:
    """Fewest ranks of rehearsals that would choose different numbers by themselves, which could not be compared: some
    paths train on one CPU rank with some releases of torch. None where they are equal, were typed, or are swept."""
    ranks = {arm.plan.ranks for arm in arms}
    typed = any(override.lstrip("+").startswith(f"{RANKS}=") for arm in arms for override in arm.overrides)
    return None if typed or len(ranks) == 1 or not all(arm.plan.rehearsal for arm in arms) else min(ranks)


def _job(arm: Arm, slot: Slot, settings: Settings, identity: str) -> Job:
    config = arm.plan.config
    place = {"replicate": slot.replicate, "block": slot.block, "order": slot.order}
    overrides = [*arm.overrides, *(f"{key}={value}" for key, value in place.items()), f"sweep='{identity}'"]
    if settings.vary_seed:
        seed = config.train.seed + slot.replicate
        config = replace(config, train=replace(config.train, seed=seed))
        overrides.append(f"train.seed={seed}")
    plan = replace(arm.plan, config=replace(config, sweep=identity, **place))
    return Job(slot=slot, arm=arm, plan=plan, overrides=tuple(overrides))


def _plan(swept: str, config: PilotConfig) -> Plan:
    try:
        return make_plan(config)
    except ConfigError as error:
        raise ConfigError(f"{swept}: {error}" if swept else str(error)) from error


def _check(arms: Sequence[tuple[str, tuple[str, ...]]], settings: Settings) -> None:
    keys = {override.lstrip("+").partition("=")[0] for _, overrides in arms for override in overrides}
    if taken := [key for key in SET_BY_THE_SWEEP if key in keys]:
        raise ConfigError(f"{taken[0]}= is set by the sweep: leave it out (replicates=N says how often an arm runs)")
    if settings.vary_seed and any("train.seed=" in swept for swept, _ in arms):
        raise ConfigError("sweep.vary_seed=true gives every replicate its own seed: train.seed cannot be swept as well")


def settings_override(argument: str) -> str | None:
    """``replicates=4`` and ``sweep.order=blocked`` as overrides of the sweeper; None for every other argument.

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
