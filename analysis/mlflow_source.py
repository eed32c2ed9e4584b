"""Runs out of an MLflow server: a paged search for all of them, files or metric histories only for those in use.

The files that the harness attaches to a run (configuration, manifest, rows) are preferred, since they are complete.
Where they cannot be had, params, tags, metrics and metric histories are used, and the comparison says so.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.runs import Run, from_directory
from harness import rundir
from harness.mlflow_client import connect
from harness.projection import SUMMARY_NAMES, TRAIN
from harness.rundir import RunDir

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowRun

PAGE = 1000
COMPARISON_TAG = "comparison_id"
"""Marks the parent run of a comparison, which is no run to compare."""
FILES = (rundir.CONFIG, rundir.MANIFEST, rundir.SUMMARY, rundir.CHECKS, rundir.STATUS, rundir.ROWS)
# The projection's names back to the configuration's.
PARAMS = {
    "path": "path.name",
    "kernel": "kernel.name",
    "platform": "platform.name",
    "init": "init.mode",
    "data": "data.name",
    "ranks": "platform.num_ranks",
    "lnc": "platform.lnc",
    "phase_rule": "phases.rule",
    **{
        key: f"train.{key}"
        for key in (
            "steps", "seq_len", "local_batch_size", "global_batch_size", "dtype", "learning_rate", "seed", "compile",
            "document_mask",
        )
    },
}  # fmt: skip
TAGS = {
    "git_commit": "git.commit",
    "git_dirty": "git.dirty",
    "git_changes": "git.changes",
    "hostname": "hardware.hostname",
    "instance_type": "hardware.instance_type",
}
SEARCHABLE = ("path", "kernel", "platform", "init", "data")
"""Params that are names: their text in MLflow is what a user types."""
SETTING_TAGS = ("rehearsal", "replicate", "block", "order")


class MlflowSource:
    """One tracking server."""

    def __init__(self, uri: str) -> None:
        """Connect. Raises ValueError with one line where the server or database does not answer."""
        if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
            raise ValueError(f"no database {uri.removeprefix('sqlite:///')}: expected sqlite:///FILE or http(s)://HOST")
        self.uri = uri
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        try:
            self.client = connect(uri)
        except Exception as error:
            raise unreachable(uri, error) from error

    def search(self, experiment: str | None = None, conditions: Iterable[tuple[str, str]] = ()) -> list[Run]:
        """Every run, from as few requests as there are pages of 1,000; no metric history, no file is read.

        Args:
            conditions: key and value; those on ``SEARCHABLE`` params are left to the server, the others are not used.

        Raises:
            ValueError: the server does not answer, or has no such experiment.
        """
        try:
            names = {one.experiment_id: one.name for one in self._pages(self.client.search_experiments)}
            wanted = [key for key, name in names.items() if experiment in (None, name)]
            if not wanted:
                raise ValueError(f"no experiment {experiment!r} at {self.uri}; there are: {', '.join(names.values())}")
            found = list(self._pages(self.client.search_runs, experiment_ids=wanted, filter_string=_filter(conditions)))
        except ValueError:
            raise
        except Exception as error:
            raise unreachable(self.uri, error) from error
        return [
            self._from_search(run, names[run.info.experiment_id])
            for run in found
            if COMPARISON_TAG not in run.data.tags
        ]

    def complete(self, runs: Sequence[Run], wanted: Sequence[Run]) -> list[Run]:
        """``runs`` with the ``wanted`` ones replaced by what their files say, where they have files."""
        keys = {run.mlflow_run_id for run in wanted}
        return [self._with_files(run) if run.mlflow_run_id in keys else run for run in runs]

    def _pages(self, search: Any, **arguments: Any) -> Iterator[Any]:
        token = None
        while True:
            page = search(max_results=PAGE, page_token=token, **arguments)
            yield from page
            token = page.token
            if not token:
                return

    def _from_search(self, run: MlflowRun, experiment: str) -> Run:
        """A run from its params, tags and latest metrics."""
        tags, params = run.data.tags, run.data.params
        config: dict[str, Any] = {PARAMS.get(key, key): value for key, value in params.items() if "version." not in key}
        config |= {key: tags[key] for key in SETTING_TAGS if key in tags}
        circumstances = {f"versions.{key[8:]}": value for key, value in params.items() if key.startswith("version.")}
        circumstances |= {name: tags[key] for key, name in TAGS.items() if key in tags}
        checks = [(key[6:], value) for key, value in tags.items() if key.startswith("check/")]
        return Run(
            run_id=tags.get("run_id", run.info.run_name or run.info.run_id),
            source=f"{self.uri} run {run.info.run_id}",
            experiment=experiment,
            config=config,
            circumstances=circumstances,
            summary=_summary(run.data.metrics, tags),
            failed_checks=tuple((name, "") for name, verdict in checks if verdict not in ("pass", "skipped")),
            passed_checks=frozenset(name for name, verdict in checks if verdict == "pass"),
            state=tags.get("status", run.info.status.lower()),
            reason=tags.get("status_reason", ""),
            started=datetime.fromtimestamp((run.info.start_time or 0) / 1000, UTC).isoformat(timespec="milliseconds"),
            sweep=tags.get("sweep", ""),
            complete_config=False,
            mlflow_run_id=run.info.run_id,
            read_rows=lambda: self._rows(run.info.run_id),
        )

    def _with_files(self, run: Run) -> Run:
        """The run as its attached run directory describes it; unchanged where that cannot be read."""
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / run.experiment.replace("/", "_") / run.run_id.replace("/", "_")
            target.mkdir(parents=True)
            for name in FILES:
                if not self._download(run.mlflow_run_id, name, target) and name in (rundir.CONFIG, rundir.ROWS):
                    return run
            full = from_directory(RunDir(target))
            rows = list(full.read_rows())
        return replace(
            full,
            run_id=run.run_id,
            source=run.source,
            experiment=run.experiment,
            mlflow_run_id=run.mlflow_run_id,
            state=full.state or run.state,
            reason=full.reason if full.state else run.reason,
            started=full.started or run.started,
            read_rows=lambda: rows,
        )

    def _download(self, run_id: str, name: str, target: Path) -> bool:
        try:
            self.client.download_artifacts(run_id, name, str(target))
        except Exception:  # each artifact store raises errors of its own; a file that is not there is no error here
            return False
        return (target / name).is_file()

    def _rows(self, run_id: str) -> list[dict[str, Any]]:
        rows: dict[int, dict[str, Any]] = defaultdict(dict)
        for name, metric in TRAIN.items():
            for point in self.client.get_metric_history(run_id, metric):
                rows[point.step][name] = point.value
        return [{"kind": "train", "step": step, **values} for step, values in sorted(rows.items())]


def _filter(conditions: Iterable[tuple[str, str]]) -> str:
    return " and ".join(
        f"params.{key} = '{value}'" for key, value in conditions if key in SEARCHABLE and "'" not in value
    )


def unreachable(uri: str, error: Exception) -> ValueError:
    """What is told of a server that does not answer: one line."""
    first = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return ValueError(f"MLflow at {uri} does not answer: {first[:200]}")


def _summary(metrics: Mapping[str, float], tags: Mapping[str, str]) -> dict[str, Any]:
    """``summary.json`` as far as the latest metrics tell it."""
    back = {name: key for key, name in SUMMARY_NAMES.items()}
    summary: dict[str, Any] = {"phase": tags.get("phase")}
    for name, value in metrics.items():
        place = summary
        *groups, last = back.get(name, name).split("/")
        for group in groups:
            place = place.setdefault(group, {})
        if isinstance(place, dict):
            place[last] = value
    # Only their number is known; it is what the gate asks for.
    summary["recompile_steps"] = [0] * int(metrics.get("warmup/recompiles", 0))
    return summary
