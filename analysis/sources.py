"""Where runs come from: run directories, or an MLflow server."""

from __future__ import annotations

from pathlib import Path

from analysis.comparison import Request
from analysis.runs import Run, from_directory
from harness.rundir import find_runs


def from_directories(root: Path, experiment: str | None = None) -> list[Run]:
    """All runs below ``root``. Raises ValueError where there is no such directory, or no such experiment in it."""
    if not root.is_dir():
        raise ValueError(f"no directory {root}: name the directory of runs with --runs DIR")
    directories = find_runs(root)
    names = sorted({one.experiment for one in directories})
    if directories and experiment is not None and experiment not in names:
        raise ValueError(f"no experiment {experiment!r} in {root}; there are: {', '.join(names)}")
    return [from_directory(one) for one in directories if experiment in (None, one.experiment)]


def from_mlflow(uri: str, experiment: str | None = None, request: Request | None = None) -> list[Run]:
    """All runs of an MLflow server; those that ``request`` may use are read in full, the rest from the search alone."""
    from analysis.mlflow_source import MlflowSource

    source = MlflowSource(uri)
    if request is None:
        return source.search(experiment)
    # Nothing found: without the conditions it can be told what there is instead.
    runs = source.search(experiment, request.where.conditions) or source.search(experiment)
    arms = (request.baseline, request.candidate)
    wanted = [
        run
        for run in runs
        if request.aa.matches(run) or (request.where.matches(run) and any(arm.matches(run) for arm in arms))
    ]
    return source.complete(runs, wanted)
