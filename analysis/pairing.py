"""Pairs of runs: one of each arm that ran next to each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from analysis.runs import Run


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two runs that are compared with each other, and their places in the order in which all paired runs ran."""

    label: str
    baseline: Run
    candidate: Run
    baseline_position: int | None = None
    candidate_position: int | None = None

    @property
    def runs(self) -> tuple[Run, Run]:
        return self.baseline, self.candidate


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """All pairs, the runs that found no partner, and what the pairs are based on."""

    pairs: tuple[Pair, ...]
    unpaired: tuple[Run, ...]
    basis: str
    """``block``, ``replicate`` or ``start order``."""
    ordered: bool
    """Whether the order of the runs is known, so that a drift can be told from an effect."""


# From the most to the least that is known: the same block of the same sweep, the same block, the same replicate.
BASES: tuple[tuple[str, Callable[[Run], Hashable | None]], ...] = (
    ("block", lambda run: None if run.block is None else (run.sweep or run.experiment, run.block)),
    ("block", lambda run: run.block),
    ("replicate", lambda run: (run.sweep or run.experiment, run.replicate)),
    ("start order", lambda run: "all"),
)


def make_pairs(baseline: Sequence[Run], candidate: Sequence[Run]) -> Pairing:
    """Pair the runs of two arms by the first basis that yields a pair.

    Within a group that holds several runs of an arm, equal replicate numbers go together, the rest in the order they
    ran in. Runs that are left over are named, never averaged in.
    """
    for basis, key in BASES:
        matched, unpaired = _match(baseline, candidate, key)
        if basis == "replicate" and len({run.replicate for run in [*baseline, *candidate]}) == 1:
            continue
        if matched:
            places, ordered = _positions([run for _, one, other in matched for run in (one, other)])
            pairs = tuple(
                Pair(
                    label=label,
                    baseline=one,
                    candidate=other,
                    baseline_position=places.get(id(one)),
                    candidate_position=places.get(id(other)),
                )
                for label, one, other in matched
            )
            return Pairing(pairs=pairs, unpaired=tuple(unpaired), basis=basis, ordered=ordered)
    return Pairing(pairs=(), unpaired=(*baseline, *candidate), basis="nothing", ordered=False)


def split_identical(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Two arms out of runs that are all the same (A/A): within a block the first run goes to one arm, the second to the
    other, and the arms change places from block to block, so that neither is always first."""
    groups: dict[Hashable, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=_when):
        groups[None if run.block is None else (run.sweep or run.experiment, run.block)].append(run)
    arms: tuple[list[Run], list[Run]] = ([], [])
    for number, group in enumerate(groups.values()):
        for place, run in enumerate(group):
            # A B B A within one long group, and from one block to the next.
            arms[(place + place // 2 + number) % 2].append(run)
    return arms


def _match(
    baseline: Sequence[Run], candidate: Sequence[Run], key: Callable[[Run], Hashable | None]
) -> tuple[list[tuple[str, Run, Run]], list[Run]]:
    groups: dict[Hashable, tuple[list[Run], list[Run]]] = defaultdict(lambda: ([], []))
    unpaired = []
    for arm, runs in enumerate((baseline, candidate)):
        for run in sorted(runs, key=_when):
            value = key(run)
            if value is None:
                unpaired.append(run)
            else:
                groups[value][arm].append(run)
    matched = []
    for ones, others in groups.values():
        together, left = _zip_group(ones, others)
        for number, (one, other) in enumerate(together):
            matched.append((_label(one, number, len(together)), one, other))
        unpaired += left
    return sorted(matched, key=lambda item: min(_when(item[1]), _when(item[2]))), unpaired


def _zip_group(ones: list[Run], others: list[Run]) -> tuple[list[tuple[Run, Run]], list[Run]]:
    together, rest = [], list(others)
    waiting = []
    for one in ones:
        other = next((run for run in rest if run.replicate == one.replicate), None)
        if other is None:
            waiting.append(one)
        else:
            rest.remove(other)
            together.append((one, other))
    together += zip(waiting, rest, strict=False)
    count = min(len(waiting), len(rest))
    return together, waiting[count:] + rest[count:]


def _label(run: Run, number: int, count: int) -> str:
    name = "pair" if run.block is None else f"block {run.block}"
    return name if count == 1 else f"{name} ({number + 1})"


def _when(run: Run) -> tuple[str, int, str, str]:
    """Sort key: by start time where there is one, else by the order in the sweep."""
    return (run.started, run.order if run.order is not None else -1, run.sweep or run.experiment, run.run_id)


def _positions(runs: Sequence[Run]) -> tuple[dict[int, int], bool]:
    """Places 0, 1, 2 ... by start time, or by the order of the sweep where it is one sweep without start times."""
    if all(run.started for run in runs) and len({run.started for run in runs}) == len(runs):
        ranked = sorted(runs, key=lambda run: run.started)
    elif all(run.order is not None for run in runs) and len({run.order for run in runs}) == len(runs):
        ranked = sorted(runs, key=lambda run: run.order or 0)
    else:
        return {}, False
    return {id(run): place for place, run in enumerate(ranked)}, True
