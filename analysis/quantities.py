"""What is compared between two arms, beside the loss curve: one entry per number of ``summary.json``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.runs import Run


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number that each run has one of."""

    name: str
    """In JSON, metrics and tags."""
    label: str
    keys: tuple[str, ...]
    """Where it stands in summary.json, dotted; the first that all runs have counts, so that scopes are never mixed."""
    unit: str
    more_is_better: bool
    better: str
    """The verdict's word where the candidate is better, e.g. ``faster``."""
    worse: str
    measured: bool = True
    """Measured with a clock. Such a number is never exactly the same in all runs; if it is, they are no replicates."""
    equal: tuple[str, ...] = ()
    """Summary keys that both runs of a pair must agree on, else the pair says nothing about this quantity."""

    def in_scope_of(self, runs: Iterable[Run]) -> Quantity:
        """The quantity under the one key that is used for these runs, its unit with the key's scope."""
        runs = list(runs)
        key = next((key for key in self.keys if all(run.fact(key) is not None for run in runs)), self.keys[0])
        scope = " per rank" if key.endswith("per_rank") else ""
        return replace(self, keys=(key,), unit=f"{self.unit}{scope}")


QUANTITIES = (
    Quantity(
        name="throughput",
        label="Steady throughput",
        keys=("steady.tokens_per_s", "steady.tps_per_rank"),
        unit="tokens/s",
        more_is_better=True,
        better="faster",
        worse="slower",
    ),
    Quantity(
        name="step_time",
        label="Steady step time",
        keys=("steady.step_s_median",),
        unit="s",
        more_is_better=False,
        better="faster",
        worse="slower",
    ),
    Quantity(
        name="end_to_end",
        label="Throughput end to end",
        keys=("end_to_end.tokens_per_s", "end_to_end.tps_per_rank"),
        unit="tokens/s",
        more_is_better=True,
        better="faster",
        worse="slower",
    ),
    Quantity(
        name="compile_time",
        label="Compile time",
        keys=("compile_s",),
        unit="s",
        equal=("warmup.cache",),
        more_is_better=False,
        better="faster",
        worse="slower",
    ),
    Quantity(
        name="memory",
        label="Peak memory per device",
        keys=("memory.peak_gib",),
        unit="GiB",
        more_is_better=False,
        better="lower",
        worse="higher",
        measured=False,
    ),
    Quantity(
        name="cost",
        label="Cost of a run (currency of its price)",
        keys=("cost.run",),
        unit="",
        more_is_better=False,
        better="lower",
        worse="higher",
    ),
)
HEADLINE = QUANTITIES[0]
