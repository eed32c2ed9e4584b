"""Run directory -> MLflow: idempotent and replayable.

A run is found again by its tag ``run_id``, every point carries the log's own time, and MLflow's store keeps a point
that is sent twice once: sending again, or after having been cut off at any place, ends with the same content. What has
been acknowledged is kept in ``mlflow.json`` so that nothing is sent twice without need.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import rundir
from harness.privacy import redact_text
from harness.projection import (
    TRAIN,
    Point,
    StepClock,
    check_points,
    params,
    row_points,
    sample_points,
    summary_points,
    tags,
    to_ms,
)
from harness.rundir import RunDir, now

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

MLFLOW_STATUS = {rundir.FINISHED: "FINISHED", rundir.FAILED: "FAILED", rundir.KILLED: "KILLED"}
BATCH = 1000  # MLflow's limit for the metrics of one request
DATABASE, ARTIFACTS = "mlflow.db", "mlartifacts"
# MLflow's own default is 7 retries with a doubling pause: the first call to a server that is down takes 247 s.
BOUNDS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
}
LOG_SCRUBBED = ("train.log", rundir.EVENTS)


@dataclass
class Sent:
    """What one tracking server has acknowledged of one run."""

    uri: str
    experiment_id: str = ""
    mlflow_run_id: str = ""
    rows: int = 0
    samples: int = 0
    complete: bool = False
    error: str = ""
    updated: str = ""


def default_uri(runs: Path) -> str:
    """The local database in the directory of all runs."""
    return f"sqlite:///{(runs / DATABASE).resolve()}"


def connect(uri: str) -> MlflowClient:
    """A client whose store is ready. Raises what MLflow raises when the server does not answer."""
    for name, value in BOUNDS.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    from mlflow.tracking import MlflowClient

    if not uri.startswith("sqlite:///"):
        return MlflowClient(tracking_uri=uri)
    from filelock import FileLock

    database = Path(uri.removeprefix("sqlite:///"))
    database.parent.mkdir(parents=True, exist_ok=True)
    # Several processes that create the tables of a fresh database at once leave it broken for good.
    with FileLock(f"{database}.lock"):
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
    return client


class Tracker:
    """Sends one run directory to one MLflow server."""

    def __init__(self, run: RunDir, uri: str) -> None:
        self.run, self.uri = run, uri
        self.sent = self._load()
        self._client: MlflowClient | None = None
        self._rewind()

    def _rewind(self) -> None:
        """Read the streams from their start: the clock of steps needs all rows, also those that were sent before."""
        self._clock = StepClock()
        self._rows = rundir.GrowingJsonLines(self.run.file(rundir.ROWS))
        self._samples = rundir.GrowingJsonLines(self.run.file(rundir.SAMPLES))
        self._rows_read = self._samples_read = 0

    def send(self) -> None:
        """Send the rows and samples that are new; after the run's end also all the rest, and its final status last."""
        if self._client is None:
            self._client = connect(self.uri)
            self._open()
        status = self.run.status()
        self._send_stream()
        if status is not None and status.state != rundir.RUNNING and not self.sent.complete:
            self._finish(status)
        self._save(error="")

    def note_error(self, error: BaseException) -> None:
        """Record why sending failed; the next attempt starts from a fresh connection."""
        self._client = None
        lines = str(error).strip().splitlines() or [type(error).__name__]
        with contextlib.suppress(OSError):
            self._save(error=f"{type(error).__name__}: {redact_text(lines[0])[:300]}")

    def unsent(self) -> int:
        """Rows that this server has not acknowledged."""
        return sum(1 for _ in self.run.rows()) - self.sent.rows

    # -- connection ------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Find or make the experiment and the run."""
        self._rewind()
        client = self._connected()
        experiment = client.get_experiment_by_name(self.run.experiment)
        experiment_id = experiment.experiment_id if experiment else self._create_experiment()
        found = client.search_runs([experiment_id], filter_string=f"tags.run_id = '{self.run.run_id}'", max_results=1)
        if found:
            mlflow_run_id = found[0].info.run_id
        else:
            status = self.run.status()
            created = client.create_run(
                experiment_id,
                start_time=to_ms(status.started) if status else None,
                run_name=self.run.manifest().get("run_name", self.run.run_id),
                tags={"run_id": self.run.run_id},
            )
            mlflow_run_id = created.info.run_id
        if mlflow_run_id != self.sent.mlflow_run_id:
            self.sent = Sent(uri=redact_text(self.uri), experiment_id=experiment_id, mlflow_run_id=mlflow_run_id)
        self._send_texts()
        self._save(error="")

    def _create_experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        location = None
        if self.uri.startswith("sqlite:///"):
            location = (Path(self.uri.removeprefix("sqlite:///")).parent / ARTIFACTS).resolve().as_uri()
        try:
            return self._connected().create_experiment(
                self.run.experiment,
                artifact_location=location,
                tags={"mlflow.experimentKind": "custom_model_development"},  # opens as training, not as GenAI
            )
        except MlflowException:  # another process was faster
            experiment = self._connected().get_experiment_by_name(self.run.experiment)
            if experiment is None:
                raise
            return experiment.experiment_id

    def _connected(self) -> MlflowClient:
        assert self._client is not None
        return self._client

    # -- content -----------------------------------------------------------------------------------------------------

    def _send_texts(self) -> None:
        from mlflow.entities import Param, RunTag

        all_params = [Param(key, value) for key, value in params(self.run.config(), self.run.manifest()).items()]
        all_tags = [RunTag(key, value[:8000]) for key, value in tags(self.run).items()]
        for start in range(0, max(len(all_params), len(all_tags)), 100):
            part = slice(start, start + 100)
            self._connected().log_batch(self.sent.mlflow_run_id, params=all_params[part], tags=all_tags[part])

    def _send_stream(self) -> None:
        """New rows and samples, a batch at a time; the count of what was acknowledged is kept after each."""
        fallback = self._started_ms()
        rows = self._rows.new()
        for row in rows:
            self._clock.add(row)
        for part in _chunks(rows[max(0, self.sent.rows - self._rows_read) :], BATCH // len(TRAIN)):
            self._log(point for row in part for point in row_points(row, fallback))
            self.sent.rows += len(part)
            self._save(error="")
        self._rows_read += len(rows)
        samples = self._samples.new()
        for part in _chunks(samples[max(0, self.sent.samples - self._samples_read) :], 20):
            self._log(point for sample in part for point in sample_points(sample, self._step_at(sample)))
            self.sent.samples += len(part)
            self._save(error="")
        self._samples_read += len(samples)

    def _step_at(self, sample: dict[str, Any]) -> int:
        return self._clock.at(to_ms(sample.get("time")) or 0)

    def _log(self, points: Iterable[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(point.name, point.value, point.time_ms, point.step) for point in points]
        for part in _chunks(metrics, BATCH):
            self._connected().log_batch(self.sent.mlflow_run_id, metrics=part)

    def _finish(self, status: rundir.Status) -> None:
        """Summary, checks, artifacts, note; the final status only when all of that is in."""
        ended = to_ms(status.ended) or self._started_ms()
        self._log(summary_points(self.run.summary(), ended))
        self._log(check_points(self.run.checks(), ended))
        self._send_texts()
        with tempfile.TemporaryDirectory() as staging:
            for file in artifacts(self.run, Path(staging)):
                self._connected().log_artifact(self.sent.mlflow_run_id, str(file))
        self._connected().set_terminated(self.sent.mlflow_run_id, MLFLOW_STATUS[status.state], ended)
        self.sent.complete = True

    def _started_ms(self) -> int:
        status = self.run.status()
        return (to_ms(status.started) if status else None) or 0

    # -- what was acknowledged ---------------------------------------------------------------------------------------

    def _load(self) -> Sent:
        uri = redact_text(self.uri)
        for entry in self.run.sent().get("servers", []):
            if entry.get("uri") == uri:
                return Sent(**{key: value for key, value in entry.items() if key in Sent.__dataclass_fields__})
        return Sent(uri=uri)

    def _save(self, *, error: str) -> None:
        self.sent.error, self.sent.updated = error, now()
        others = [entry for entry in self.run.sent().get("servers", []) if entry.get("uri") != self.sent.uri]
        self.run.write_json(rundir.SENT, {"servers": [*others, asdict(self.sent)]})


def artifacts(run: RunDir, staging: Path) -> Iterator[Path]:
    """The files to attach: documents as they are, log and events scrubbed of secrets, and for a failed run its end."""
    for name in (
        rundir.CONFIG,
        rundir.MANIFEST,
        rundir.SUMMARY,
        rundir.CHECKS,
        rundir.STATUS,
        rundir.ROWS,
        rundir.SAMPLES,
    ):
        if run.file(name).exists():
            yield run.file(name)
    for name in LOG_SCRUBBED:
        if run.file(name).exists():
            with run.file(name).open(encoding="utf-8", errors="replace") as source, (staging / name).open("w") as copy:
                copy.writelines(redact_text(line) for line in source)
            yield staging / name
    status = run.status()
    if status is not None and status.state != rundir.FINISHED:
        (staging / "log_tail.txt").write_text(redact_text(run.log_tail(50)) + "\n", encoding="utf-8")
        yield staging / "log_tail.txt"
        if run.file("error.txt").exists():
            (staging / "error.txt").write_text(redact_text(run.file("error.txt").read_text(errors="replace")))
            yield staging / "error.txt"


def _chunks(items: list, size: int) -> Iterator[list]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
