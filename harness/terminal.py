"""What a pilot prints: what is about to run, what came out, and the table of a sweep."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from harness.progress import printable
from harness.projection import number

if TYPE_CHECKING:
    from rich.console import Console

    from harness.pilot import Outcome
    from harness.plan import Plan
    from harness.rundir import RunDir

PLAIN_WIDTH = 160
"""Columns where the output is no terminal: nothing is cut off in a file."""
COLOURS = {"finished": "green", "failed": "red", "killed": "yellow"}


class Forgiving(io.TextIOBase):
    """A stream that goes on when nobody reads it any more: a closed terminal or pipe must not end a training."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._broken = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def isatty(self) -> bool:
        return not self._broken and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], object]) -> None:
        if self._broken:
            return
        try:
            action()
        except (OSError, ValueError):
            self._broken = True
            with contextlib.suppress(OSError, ValueError):  # else the interpreter complains at its end
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def make_console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PLAIN_WIDTH
    return Console(file=Forgiving(stream), highlight=False, soft_wrap=True, width=width)  # type: ignore[arg-type]


def relative(path: Path) -> str:
    """A path as a person would type it from here."""
    try:
        return os.path.relpath(path) if path.resolve().is_relative_to(Path.cwd()) else str(path)
    except OSError:
        return str(path)


def show_start(console: Console, plan: Plan, run: RunDir) -> None:
    from harness.weights_plan import reference_plan

    config, train, shape = plan.config, plan.config.train, plan.shape
    experts = f", {shape.num_experts} experts top {shape.top_k}" if shape.is_moe else ""
    kind = "rehearsal on CPU, real training at narrow widths" if plan.rehearsal else "full scale"
    console.print(f"[bold]{config.path.name}[/] kernel={config.kernel.name} platform={config.platform.name} ({kind})")
    console.print(
        f"  {shape.num_layers} layers, hidden {shape.hidden}{experts}, {shape.num_params():,} parameters; "
        f"{plan.ranks} rank{'s' * (plan.ranks > 1)}{on_nodes(plan)}, {train.steps} steps of "
        f"{plan.tokens_per_step:,} tokens"
    )
    console.print(f"  {plan.initial.describe()}", markup=False)
    if (reference := reference_plan(plan)).wanted:
        console.print(f"  first loss compared with {reference.why}", markup=False)
    console.print(f"  {relative(run.path)}", style="dim", markup=False)


def show_end(console: Console, plan: Plan, run: RunDir) -> None:
    """The figures of a run in a short table, its checks, and where to look."""
    from rich.table import Table

    status, summary = run.status(), run.summary()
    assert status is not None
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    for name, value in figures(summary, plan):
        table.add_row(name, value)
    colour = "red" if status.exit_code == 1 else COLOURS[status.state]
    reason = f": {printable(status.reason)}" if status.reason else ""
    console.print(f"[{colour}]{status.state}[/]", end="")
    console.print(reason, markup=False)
    console.print(table)
    verdicts = [check["verdict"] for check in run.checks()]
    console.print(f"checks    {verdicts.count('pass')} passed, {verdicts.count('fail')} failed", end="")
    console.print(f", {verdicts.count('skipped')} skipped" if "skipped" in verdicts else "")
    for check in run.checks():
        if check["verdict"] == "fail":
            reports = not check.get("blocking", True)
            line = f"  {check['name']}{' (only reported)' * reports}: {printable(check['evidence'])}"
            console.print(line, markup=False, style="yellow" if reports else "red")
    console.print(f"record    {relative(run.path)}", markup=False)
    show_export(console, plan, run)
    if plan.config.tracking.enabled:
        show_tracking(console, run)


def show_export(console: Console, plan: Plan, run: RunDir) -> None:
    """Where the trained weights lie; on a rented machine also that they go with it, unless a copy arrived elsewhere."""
    from harness.weights_plan import saved_weights

    places = saved_weights(plan, run.path)
    for place, size in places:
        console.print(f"weights   {relative(place)}, {size / 1e9:,.2f} GB", markup=False)
    copied = any(check["name"] == "export_copy" and check["verdict"] == "pass" for check in run.checks())
    rented = plan.price_per_hour is not None or plan.config.platform.device in ("neuron", "cuda")
    if places and rented and not copied:
        line = "          they go with this instance when it ends: copy them now, or next time export.copy_to=URL"
        console.print(line, style="yellow", markup=False)


def show_tracking(console: Console, run: RunDir) -> None:
    """Where the run is in MLflow, or what is still to be sent and how."""
    sent = run.sent().get("servers", [])[-1:] or [{}]
    if sent[0].get("complete"):
        console.print(f"mlflow    run {sent[0]['mlflow_run_id']} in {sent[0]['uri']}", markup=False)
        return
    missing = sum(1 for _ in run.rows()) - sent[0].get("rows", 0)
    why = printable(sent[0].get("error") or "the tracking server did not answer in time")
    line = f"mlflow    not complete, {missing} rows and the files are still to be sent: {why}"
    console.print(line, style="yellow", markup=False)
    console.print(f"          python -m harness.sync {relative(run.path)}   sends them", markup=False)


def figures(summary: Mapping[str, Any], plan: Plan) -> list[tuple[str, str]]:
    """Names and values of the short table; names carry their scope and unit."""
    steady, end, loss = summary.get("steady") or {}, summary.get("end_to_end") or {}, summary.get("loss") or {}
    memory, warmup = summary.get("memory") or {}, summary.get("warmup_steps")
    phase = f"{summary.get('phase')}" + (f" ({summary['phase_reason']})" if summary.get("phase_reason") else "")
    scope = f"tokens/s, {plan.ranks} rank{'s' * (plan.ranks > 1)}{on_nodes(plan)}"
    rows = [
        ("loss", f"{number(loss.get('first'))} → {number(loss.get('last'))} in {summary.get('steps')} steps"),
        ("warm-up", f"{number(warmup)} steps, {number(summary.get('compile_s'))} s; then {phase}"),
        (
            "steady",
            f"{number(steady.get('tokens_per_s'))} {scope}; step {number(steady.get('step_s_median'))} s (median)",
        ),
        ("end to end", f"{number(end.get('tokens_per_s'))} {scope}, warm-up included"),
        ("memory", f"{number(memory.get('peak_gib'))} GiB per rank at most"),
    ]
    if steady.get("mfu") is not None:
        rows.append(("MFU", f"{number(steady['mfu'])} % ({(summary.get('flops') or {}).get('convention')})"))
    return rows


def show_dry_run(
    console: Console, plan: Plan, commands: Sequence[Sequence[str]], env: Mapping[str, str], lines: list[str]
) -> None:
    """Command of each node, environment and preflight of a pilot that is not started."""
    config = plan.config
    console.print(f"[bold]dry run[/] {config.path.name} on {config.platform.name}: nothing is started\n")
    console.print("environment", style="bold")
    for name, value in env.items():
        console.print(f"  {name}={shlex.quote(value)}", markup=False)
    for rank, command in enumerate(commands):
        console.print("\ncommand" + (f" of {plan.place.name_of(rank)}" if len(commands) > 1 else ""), style="bold")
        console.print("  " + shell_lines(command), markup=False)
    console.print("\npreflight", style="bold")
    for line in lines:
        console.print(f"  {line}", markup=False)


def on_nodes(plan: Plan) -> str:
    return f" on {plan.place.num_nodes} nodes" if plan.place.several else ""


def shell_lines(command: Sequence[str]) -> str:
    """A command to paste into a shell: each option on a line of its own, with its value."""
    lines: list[list[str]] = [[]]
    for word in command:
        if word.startswith("-") and lines[-1]:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return " \\\n    ".join(" ".join(line) for line in lines)


def show_sweep(console: Console, outcomes: Sequence[Outcome], places: Sequence[tuple[int, str]] = ()) -> None:
    """What happened to each job of a multirun; ``places`` are block and arm of each where it has them."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="sweep", title_justify="left")
    table.add_column("#", justify="right")
    for column in ("block", "arm") if places else ("pilot",):
        table.add_column(column, justify="right" if column == "block" else "left")
    for column in ("status", "steady tokens/s", "loss", "run"):
        table.add_column(column, justify="right" if column in ("steady tokens/s", "loss") else "left")
    for index, outcome in enumerate(outcomes):
        summary = outcome.run.summary() if outcome.run else {}
        reason = f" {outcome.reason}" if outcome.reason else ""
        table.add_row(
            str(index),
            *([str(part) for part in places[index]] if places else [outcome.name]),
            Text(outcome.state + printable(reason), style=COLOURS.get(outcome.state, "")),
            number((summary.get("steady") or {}).get("tokens_per_s")),
            number((summary.get("loss") or {}).get("last")),
            outcome.run.run_id if outcome.run else "–",
        )
    console.print(table)


def show_resume(console: Console, jobs: Sequence[Sequence[str]]) -> None:
    """How to go on after a sweep was interrupted: what is left, a command for each job."""
    if not jobs:
        console.print("interrupted; nothing is left to do")
        return
    console.print(f"interrupted; {len(jobs)} pilot{'s are' if len(jobs) > 1 else ' is'} left, to go on type")
    for job in jobs:
        console.print(f"  python -m harness {shlex.join(job)}", markup=False)
