"""What a person is shown of a sweep: its order and cost before it starts, how to go on when it stops, what came out."""

from __future__ import annotations

import shlex
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.plan import known
from harness.projection import number
from harness.rundir import RunDir
from harness.sweep.jobs import RANKS, Arm, Job, Sweep
from harness.sweep.order import BLOCKED
from harness.sweep.resume import Expected, succeeded
from harness.terminal import relative

if TYPE_CHECKING:
    from rich.console import Console

SHOWN_BLOCKS = 40


def show_plan(console: Console, sweep: Sweep, done: Mapping[int, RunDir], expected: Expected, *, dirty: bool) -> None:
    """Arms, order, what is kept from before, expected time and cost."""
    settings = sweep.settings
    how = "one arm after the other" if settings.order == BLOCKED else "interleaved"
    seeds = ", a seed per replicate" if settings.vary_seed else ""
    console.print(
        f"sweep {sweep.id}: {len(sweep.arms)} arms x {settings.replicates} = {len(sweep.jobs)} pilots, {how}{seeds}",
        style="bold",
    )
    for arm in sweep.arms:
        console.print(f"  {arm.letter}  {arm}", markup=False)
    console.print(f"  order  {order_line(sweep)}", markup=False)
    if sweep.shared_ranks:
        why = "by themselves they would use different numbers, which cannot be compared"
        console.print(f"  {RANKS}={sweep.shared_ranks} in every arm: {why}", markup=False)
    if len(sweep.arms) > 1 and settings.replicates % 2 and settings.order != BLOCKED:
        console.print("  an even number of replicates would let a steady drift of the machine cancel", style="dim")
    console.print(f"  record {relative(sweep.directory)}", markup=False)
    if done:
        console.print(f"  {len(done)} finished before, {len(sweep.jobs) - len(done)} to run", markup=False)
    if dirty:
        console.print(
            "  the code has uncommitted changes: pilots are compared under the same changes only", style="yellow"
        )
    if len(done) < len(sweep.jobs):
        console.print(f"  {expectation(sweep, expected)}", markup=False)


def order_line(sweep: Sweep) -> str:
    """The arms in the order in which they run, blocks apart: ``A B | B A``."""
    parts: list[str] = []
    for previous, job in zip([None, *sweep.jobs], sweep.jobs, strict=False):
        group = (lambda item: item.slot.arm) if sweep.settings.order == BLOCKED else (lambda item: item.slot.block)
        if previous is None or group(previous) != group(job):
            parts.append(job.arm.letter)
        else:
            parts[-1] += f" {job.arm.letter}"
    shown = parts if len(parts) <= SHOWN_BLOCKS else [*parts[: SHOWN_BLOCKS - 1], f"... {parts[-1]}"]
    return " | ".join(shown)


def expectation(sweep: Sweep, expected: Expected) -> str:
    """One line about time and cost. Nothing is made up: without earlier runs both are unknown."""
    price, date = sweep.config.platform.price_per_hour, sweep.config.platform.price_date
    if expected.seconds is None:
        what = "time" if price is None else "time and cost"
        return f"expected {what}: unknown, no earlier run of {' and '.join(expected.unknown)} here"
    source = f"from {expected.num_runs} earlier run{'s' * (expected.num_runs != 1)}"
    text = f"expected time: {in_words(expected.seconds)}"
    if expected.cost is not None:
        at = f"{price:g} per hour" if price is not None else "the prices of the arms"
        text += f", expected cost: {expected.cost:,.2f} at {at}{f' of {date}' if date else ''}"
    return f"{text} ({source})"


def in_words(seconds: float) -> str:
    """``45 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def show_dry_run(console: Console, sweep: Sweep, done: Mapping[int, RunDir]) -> None:
    """The plan of every job, a line each; nothing is started."""
    from rich.table import Table

    table = Table(title="dry run: nothing is started", title_justify="left")
    for column in ("#", "block", "arm", "path", "kernel", "layers", "ranks", "steps", "tokens/step", "seed", "config"):
        table.add_column(column, justify="right" if column in ("#", "block", "layers", "ranks", "steps") else "left")
    table.add_column("now")
    for job in sweep.jobs:
        plan, config = job.plan, job.plan.config
        table.add_row(
            str(job.slot.order),
            str(job.slot.block),
            f"{job.arm.letter} {job.arm}",
            config.path.name,
            config.kernel.name,
            str(plan.shape.num_layers),
            str(plan.ranks),
            str(config.train.steps),
            f"{known(config.train.global_batch_size)} x {config.train.seq_len} = {plan.tokens_per_step:,}",
            str(config.train.seed),
            job.key[0][:8],
            "finished" if job.slot.order in done else "to run",
        )
    console.print(table)


def show_job(console: Console, job: Job, place: int, count: int) -> None:
    """Which pilot comes now."""
    text = f"[{place}/{count}] block {job.slot.block}, arm {job.arm.letter}: {job.arm}"
    console.print(f"\n{text}", style="bold", markup=False)


def show_arms(console: Console, sweep: Sweep, runs: Mapping[int, RunDir | None]) -> None:
    """What each arm came to, without a verdict, and the command that gives one."""
    for arm in sweep.arms:
        own = [runs.get(job.slot.order) for job in sweep.jobs if job.arm is arm]
        good = [run for run in own if run is not None and succeeded(run)]
        speeds = [speed for run in good if (speed := (run.summary().get("steady") or {}).get("tokens_per_s"))]
        median = f", median {number(statistics.median(speeds))} steady tokens/s" if speeds else ""
        without = len(good) - len(speeds)  # not repeated until they suit: that would choose among measurements
        lost = f", {without} without a steady part (more train.steps help)" if without else ""
        console.print(f"  {arm.letter}  {arm}: {len(good)} of {len(own)} finished{lost}{median}", markup=False)
    for candidate in sweep.arms[1:] if len(sweep.arms) == 2 or not sweep.identical else ():
        console.print(f"compare   {comparison(sweep, candidate)}", markup=False)


def comparison(sweep: Sweep, candidate: Arm) -> str:
    """The command that compares an arm with the first one."""
    words = ["python", "-m", "analysis", "compare"]
    if sweep.identical:
        words += ["--baseline", f"sweep={sweep.id}", "--candidate", f"sweep={sweep.id}"]
    else:
        for name, arm in (("baseline", sweep.arms[0]), ("candidate", candidate)):
            words += [f"--{name}", *(setting.lstrip("+") for setting in arm.settings.split(" "))]
        words += ["--where", f"sweep={sweep.id}"]
    if sweep.config.runs != "runs":
        words += ["--runs", sweep.config.runs]
    return shlex.join(words)


def show_interrupted(console: Console, sweep: Sweep, finished: int) -> None:
    """How to go on."""
    left = f"{finished} of {len(sweep.jobs)} finished; the same command runs the other {len(sweep.jobs) - finished}:"
    console.print(f"interrupted: {left}", style="yellow")
    console.print(f"  {typed_command()}", markup=False)


def typed_command() -> str:
    """The command line of this process as a person typed it."""
    return shlex.join(["python", *sys.orig_argv[1:]])


def unfinished(jobs: Sequence[Job], runs: Iterable[int]) -> list[Job]:
    """The jobs whose place in the order is not among those that count."""
    there = set(runs)
    return [job for job in jobs if job.slot.order not in there]
