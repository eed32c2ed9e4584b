"""Synthetic sweeps written to a directory and compared, as the command line does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analysis.comparison import Comparison, Request, compare
from analysis.runs import Run
from analysis.selection import Selector
from analysis.selftest import REQUEST, candidates
from analysis.sources import from_directories
from analysis.synthetic import SyntheticRun, make_sweep, write_sweep

__all__ = ["AA", "REQUEST", "baselines", "candidates", "compared", "make_sweep", "read", "request", "write_sweep"]

AA = Selector.parse(["experiment=aa"])


def baselines(runs: Sequence[SyntheticRun]) -> list[SyntheticRun]:
    return [run for run in runs if run.config["kernel"]["name"] == "baseline"]


def read(runs: Sequence[SyntheticRun], root: Path) -> list[Run]:
    write_sweep(runs, root)
    return from_directories(root)


def request(**changes: object) -> Request:
    return replace(REQUEST, **changes)


def compared(runs: Sequence[SyntheticRun], root: Path, asked: Request = REQUEST) -> Comparison:
    return compare(read(runs, root), asked)
