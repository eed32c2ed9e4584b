"""What `python -m harness.checkpoint` prints for a person."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.model_config import facts, stored_dtype
from harness.progress import printable
from harness.terminal import relative
from harness.weights import some

if TYPE_CHECKING:
    from rich.console import Console

    from harness.checkpoint.diff import Comparison, TensorDiff
    from harness.checkpoint.inspect import Description
    from harness.checkpoint.verify import Finding

LISTED = 20
"""Rows of a table before the rest is counted."""
FACTS = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "moe_intermediate_size", "num_experts", "num_experts_per_tok", "vocab_size", "rope_theta", "rms_norm_eps",
)  # fmt: skip
COLOURS = {"pass": "green", "fail": "red", "skipped": "yellow"}


def size(count: float) -> str:
    """Bytes with the unit that leaves three or four digits."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.2f} GB"


def show_description(console: Console, found: Description) -> None:
    from rich.table import Table
    from rich.text import Text

    console.print(Text(printable(relative(found.directory)), style="bold"))
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    dtypes = ", ".join(f"{name} ({count:,})" for name, count in found.dtypes.items())
    grid.add_row("files", Text(_files(found)))
    grid.add_row("tensors", f"{len(found.tensors):,}: {dtypes}" if found.tensors else "none")
    grid.add_row("parameters", f"{found.parameters:,}, {size(found.stored_bytes)}")
    grid.add_row("head", found.head)
    if found.config:
        says = facts(found.config)
        named = ", ".join(f"{key} {printable(str(says[key]))[:40]}" for key in FACTS if key in says)
        grid.add_row("config", Text(f"{printable(str(says.get('model_type')))[:40]}: {named}"))
        grid.add_row("", Text(f"dtype {stored_dtype(found.config) or 'not named'}"))
    grid.add_row("keys", _keys(found))
    console.print(grid)


def _files(found: Description) -> str:
    names = list(found.files)
    listed = f"{printable(names[0])}" + (f" to {printable(names[-1])}" if len(names) > 1 else "") if names else "none"
    return f"{len(names)}: {listed}, {size(sum(found.files.values()))}"


def _keys(found: Description):
    from rich.text import Text

    if found.keys is None:
        return Text(f"not compared: {found.config_error}", style="yellow")
    if problems := found.keys.problems():
        return Text("; ".join(problems), style="red")
    kind = "Qwen3-MoE" if found.shape is not None and found.shape.is_moe else "Qwen3"
    return Text(f"those of the {kind} in its config.json: none missing, extra or mis-shaped", style="green")


def show_findings(console: Console, directory: Path, findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        table.add_row(Text(finding.verdict, style=COLOURS[finding.verdict]), finding.name, Text(finding.evidence))
    console.print(table)
    verdicts = [finding.verdict for finding in findings]
    failed = [finding.name for finding in findings if finding.verdict == "fail"]
    skipped = f", {verdicts.count('skipped')} skipped" if "skipped" in verdicts else ""
    verdict = f"failed: {', '.join(failed)}" if failed else f"{verdicts.count('pass')} checks passed{skipped}"
    console.print(
        Text(f"{printable(relative(directory))}: {verdict}", style="red" if failed else "green"), soft_wrap=True
    )


def show_comparison(console: Console, found: Comparison, *, everything: bool = False) -> None:
    from rich.text import Text

    places = (found.first.directory, found.second.directory)
    first, second = (printable(relative(place)) for place in places)
    for what, lines in (
        (f"only in {first}", found.only_first),
        (f"only in {second}", found.only_second),
        ("shapes", found.shapes),
        ("types not understood", found.unreadable),
        ("config.json", found.config),
    ):
        shown = lines if everything else lines[:LISTED]
        more = f" and {len(lines) - len(shown):,} more" if len(shown) < len(lines) else ""
        if lines:
            console.print(Text(f"{what}: {'; '.join(printable(line) for line in shown)}{more}", style="red"))
    if different := found.different:
        console.print(_table(different if everything else different[:LISTED]))
        if not everything and len(different) > LISTED:
            console.print(f"and {len(different) - LISTED:,} more (--all lists them)")
    for note in found.notes:
        console.print(Text(f"note: {note}", style="dim"))
    console.print(Text(verdict(found), style="green" if found.equal else "red"))


def verdict(found: Comparison) -> str:
    """The last line: what a person takes away."""
    compared, apart = len(found.tensors), len(found.different)
    within = f" within {found.tolerance:g}" if found.tolerance else ""
    if found.equal:
        largest = f", largest difference {found.max_abs_diff:.3g}" if found.max_abs_diff else ""
        return f"equal: {compared:,} tensors{within}{largest}"
    if not compared:
        return "different: no tensor could be compared"
    finite = [item.distance.max_abs for item in found.different if not any(item.distance.nonfinite)]
    broken = [item.name for item in found.different if any(item.distance.nonfinite)]
    largest = f", by {max(finite):.3g} at most" if finite else ""
    bad = f"; not finite: {some(broken)}" if broken else ""
    return f"different: {apart:,} of {compared:,} compared tensors{within}{largest}{bad}"


def _table(items: list[TensorDiff]):
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("tensor", "max abs", "relative", "types", ""):
        table.add_column(column, justify="right" if column in ("max abs", "relative") else "left")
    for item in items:
        found = item.distance
        bad = [f"{count:,} not finite in the {which}" for count, which in
               zip(found.nonfinite, ("first", "second"), strict=True) if count]  # fmt: skip
        numbers = [f"{value:.3g}" if not math.isnan(value) else "–" for value in (found.max_abs, found.relative)]
        kinds = item.dtypes[0] if len(set(item.dtypes)) == 1 else " and ".join(item.dtypes)
        table.add_row(Text(printable(item.name)), *numbers, kinds, Text(", ".join(bad), style="red"))
    return table


@contextmanager
def progress_bar(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar of bytes in a terminal, nothing elsewhere."""
    if not console.is_terminal:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
