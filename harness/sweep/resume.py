"""What a sweep finds in its directory: runs that count, runs that would not be comparable, and how long they took."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.manifest import config_hash, git_state, hardware, versions
from harness.plan import ConfigError, Plan
from harness.privacy import redact
from harness.rundir import FINISHED, RunDir, find_runs
from harness.sweep.jobs import Arm, Job, Sweep

CIRCUMSTANCES = ("git", "versions", "hardware")
NOT_MIXED_UP = ("hardware.python_executable",)
"""May differ between runs that are compared, as for the comparison itself."""


# -- which runs are there ---------------------------------------------------------------------------------------------


def sweep_runs(directory: Path, sweep: str) -> list[RunDir]:
    """Runs of a sweep in its experiment's directory, oldest first, whatever became of them."""
    return [run for run in find_runs(directory) if run.manifest().get("sweep") == sweep]


def succeeded(run: RunDir) -> bool:
    """Whether a run counts: finished, and no check failed."""
    status = run.status()
    return status is not None and status.state == FINISHED and status.exit_code == 0


def match_runs(jobs: Sequence[Job], runs: Iterable[RunDir]) -> tuple[dict[int, RunDir], dict[int, RunDir]]:
    """Assign runs to jobs by configuration hash, replicate and block.

    Arms that are the same (A/A) have jobs of the same key: the run that had the job's place in the order is taken
    first, then any that is left.

    Returns:
        By place in the order: runs that count, and for the other jobs the latest that did not.
    """
    by_key: dict[tuple[str, Any, Any], list[tuple[int | None, RunDir]]] = defaultdict(list)
    for run in runs:
        config = run.config()
        key = (str(run.manifest().get("config_hash")), config.get("replicate"), config.get("block"))
        by_key[key].append((config.get("order"), run))
    done: dict[int, RunDir] = {}
    for same_place in (True, False):
        for job in jobs:
            if job.slot.order in done:
                continue
            found = by_key[job.key]
            good = [item for item in found if succeeded(item[1]) and same_place in (False, item[0] == job.slot.order)]
            if good:
                done[job.slot.order] = good[0][1]
                found.remove(good[0])
    failed = {
        job.slot.order: own[-1]
        for job in jobs
        if job.slot.order not in done
        and (own := [run for order, run in by_key[job.key] if order == job.slot.order and not succeeded(run)])
    }
    return done, failed


# -- may they be mixed with what runs now -----------------------------------------------------------------------------


def circumstances(plan: Plan) -> dict[str, Any]:
    """Code, versions and hardware of a pilot that started now, as a manifest records them."""
    code = git_state(Path(__file__).resolve().parent.parent.parent)
    return redact({"git": code, "versions": versions(), "hardware": hardware(plan)})


def refuse_to_mix(kept: Iterable[RunDir], now: Mapping[str, Any]) -> None:
    """Compare the circumstances of runs that count with those of now.

    Raises:
        ConfigError: they differ; both values and a run are named.
    """
    for run in kept:
        found = differences(run.manifest(), now)
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise ConfigError(
                f"runs of this sweep are there under other circumstances: {found[0]}{more} ({run.run_id})\n"
                "  restore those, begin anew with another experiment_name=NAME, or mix them with sweep.mix=true"
            )


def differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Circumstances that differ, each with both values."""
    before, after = _flat({name: earlier.get(name) for name in now}), _flat(now)
    return [
        f"{key} was {before.get(key, 'not recorded')}, is {after.get(key, 'not there')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key not in NOT_MIXED_UP
    ]


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    groups = {name: facts.get(name) or {} for name in CIRCUMSTANCES}
    return {f"{name}.{key}": value for name, group in groups.items() for key, value in group.items()}


# -- how long will it take, and what will it cost ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Time and price of the jobs that are still to run. None: an arm of theirs never ran here."""

    seconds: float | None
    cost: float | None
    """In the currency of ``platform.price_per_hour``; None as well where no price is given."""
    num_runs: int
    """How many earlier runs this is taken from."""
    unknown: tuple[str, ...] = ()
    """Arms that never ran here."""


def expect(sweep: Sweep, jobs: Sequence[Job], runs: Path) -> Expected:
    """From earlier runs of the same configuration hash, in any experiment below ``runs``: the median per arm."""
    arms = {job.arm.letter: job.arm for job in jobs}
    hashes = {letter: _hashes(arm, [job for job in jobs if job.arm is arm]) for letter, arm in arms.items()}
    durations: dict[str, list[float]] = {letter: [] for letter in arms}
    num_runs = 0
    for run in find_runs(runs):
        if not any(f"-{arm.plan.name}-" in run.run_id for arm in arms.values()):
            continue
        own = run.manifest().get("config_hash")
        letters = [letter for letter, known in hashes.items() if own in known]
        seconds = duration(run) if letters else None
        if seconds is not None:
            num_runs += 1
            for letter in letters:
                durations[letter].append(seconds)
    unknown = tuple(f"{arm}" for letter, arm in arms.items() if not durations[letter])
    if unknown:
        return Expected(seconds=None, cost=None, num_runs=num_runs, unknown=unknown)
    each = {letter: statistics.median(values) for letter, values in durations.items()}
    prices = {arm.letter: arm.plan.price_per_hour for arm in arms.values()}
    cost = None
    if all(price is not None for price in prices.values()):
        cost = sum(each[job.arm.letter] / 3600 * (prices[job.arm.letter] or 0.0) for job in jobs)
    return Expected(seconds=sum(each[job.arm.letter] for job in jobs), cost=cost, num_runs=num_runs)


def duration(run: RunDir) -> float | None:
    """Seconds from the start of a run that counts to its end."""
    status = run.status()
    if status is None or not succeeded(run):
        return None
    try:
        return (datetime.fromisoformat(status.ended) - datetime.fromisoformat(status.started)).total_seconds()
    except ValueError:
        return None


def _hashes(arm: Arm, jobs: Iterable[Job]) -> set[str]:
    """Hashes that earlier runs of this arm may have: the price, which changes no run, may not have been known then."""
    plans = [arm.plan, *(job.plan for job in jobs)]
    return {config_hash(plan) for plan in plans} | {config_hash(_without_price(plan)) for plan in plans}


def _without_price(plan: Plan) -> Plan:
    platform = replace(plan.config.platform, price_per_hour=None, price_date=None)
    return replace(plan, config=replace(plan.config, platform=platform))
