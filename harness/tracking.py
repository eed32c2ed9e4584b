"""Run directory -> MLflow: idempotent and replayable.

A run is found again by its tag ``run_id``, every point carries the log's own time, and MLflow's store keeps a point
that is sent twice once: sending again, or after having been cut off at any place, ends with the same content. What has
been acknowledged is kept in ``mlflow.json`` so that nothing is sent twice without need.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlparse

from harness import rundir
from harness.artifacts import artifacts
from harness.mlflow_client import artifact_location, connect, default_uri
from harness.privacy import redact_text
from harness.progress import printable
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
from harness.rundir import GrowingJsonLines, RunDir, claimed, now

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

__all__ = ["BeingSent", "Sent", "Tracker", "connect", "default_uri"]

MLFLOW_STATUS = {rundir.FINISHED: "FINISHED", rundir.FAILED: "FAILED", rundir.KILLED: "KILLED"}
BATCH = 1000  # MLflow's limit for the metrics of one request
SAMPLES_AT_ONCE = 100
TRIES, QUICK_S = 3, 10.0
"""A request that fails within this time is tried again at once: a connection dropped, not a server that hangs."""
CLAIM_S = 3.0
"""How long another process that sends the same run is waited for."""
T = TypeVar("T")


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


class BeingSent(Exception):
    """Another process is sending this run."""


class Tracker:
    """Sends one run directory to one MLflow server.

    ``answered`` is told of each request that succeeded, and how many seconds it took.
    """

    def __init__(self, run: RunDir, uri: str, answered: Callable[[float], None] = lambda seconds: None) -> None:
        self.run, self.uri = run, uri
        self.sent = self._load()
        self.reached = False
        """Whether the server has answered anything."""
        self._tell = answered
        self._client: MlflowClient | None = None
        self._rewind()

    def _rewind(self) -> None:
        """Read the streams from their start: the clock of steps needs all rows, also those that were sent before."""
        self._clock = StepClock()
        self._rows = GrowingJsonLines(self.run.file(rundir.ROWS))
        self._samples = GrowingJsonLines(self.run.file(rundir.SAMPLES))
        self._rows_read, self._samples_read, self._waiting = 0, 0, []

    def send(self) -> None:
        """Send the rows and samples that are new; after the run's end also all the rest, and its final status last.

        Raises:
            BeingSent: another process is at it.
            Exception: what MLflow raises; the next call goes on where this one broke off.
        """
        with claimed(self.run, "sending", CLAIM_S) as mine:
            if not mine:
                raise BeingSent("another process is sending this run")
            try:
                self._send()
            except BaseException:
                self._rewind()
                raise

    def _answered(self, seconds: float) -> None:
        self.reached = True
        self._tell(seconds)

    def _send(self) -> None:
        if self._client is None:
            self._client = connect(self.uri)
            self._open()
        status = self.run.status()  # before the streams: what it says has ended is all there
        ended = status is not None and status.state != rundir.RUNNING
        self._send_rows()
        self._send_samples(ended)
        if status is not None and ended and not self.sent.complete:
            self._finish(status)
        self._save(error="")

    def note_error(self, error: BaseException) -> str:
        """Record why sending failed and return it in one line; the next attempt starts with a look for the run."""
        self._client = None
        why = printable(redact_text(in_a_line(error, self.uri)))[:300]
        with contextlib.suppress(OSError):
            self._save(error=why)
        return why

    def _ask(self, request: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """The answer to a request that may be repeated; quick failures are tried again."""
        for last in (False,) * (TRIES - 1) + (True,):
            start = time.monotonic()
            try:
                answer = request(*args, **kwargs)
            except Exception:
                if last or time.monotonic() - start > QUICK_S:
                    raise
            else:
                self._answered(time.monotonic() - start)
                return answer
        raise AssertionError("the last try returns or raises")

    # -- connection ------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Find or make the experiment and the run."""
        self._rewind()
        experiment_id = self._ask(self._experiment)
        mlflow_run_id = self._ask(self._find_or_create, experiment_id)
        if mlflow_run_id != self.sent.mlflow_run_id:
            self.sent = Sent(uri=redact_text(self.uri), experiment_id=experiment_id, mlflow_run_id=mlflow_run_id)
        self._send_texts()
        self._save(error="")

    def _experiment(self) -> str:
        """The id of the experiment; made where there is none. May be repeated."""
        from mlflow.exceptions import MlflowException

        client, name = self._connected(), self.run.experiment
        if (found := client.get_experiment_by_name(name)) is not None:
            return found.experiment_id
        kind = {"mlflow.experimentKind": "custom_model_development"}  # opens as training, not as GenAI
        try:
            return client.create_experiment(name, artifact_location=artifact_location(self.uri), tags=kind)
        except MlflowException:  # another process was faster
            if (found := client.get_experiment_by_name(name)) is None:
                raise
            return found.experiment_id

    def _find_or_create(self, experiment_id: str) -> str:
        """The id of the MLflow run with our tag; made where there is none. May be repeated.

        A request whose answer was lost may have made one all the same: of several the first in order is kept.
        """
        client, status = self._connected(), self.run.status()
        attempt = status.attempt if status else 1
        found = client.search_runs([experiment_id], filter_string=f"tags.run_id = '{self.run.run_id}'")
        for before in [run for run in found if int(run.data.tags.get("attempt", "1")) < attempt]:
            client.delete_run(before.info.run_id)  # its points are not this attempt's, and points cannot be taken back
            found.remove(before)
        if found:
            first, *others = sorted(run.info.run_id for run in found)
            for other in others:
                client.delete_run(other)
            return first
        created = client.create_run(
            experiment_id,
            start_time=to_ms(status.started) if status else None,
            run_name=self.run.manifest().get("run_name", self.run.run_id),
            tags={"run_id": self.run.run_id, "attempt": str(attempt)},
        )
        return created.info.run_id

    def _connected(self) -> MlflowClient:
        assert self._client is not None
        return self._client

    # -- content -----------------------------------------------------------------------------------------------------

    def _send_texts(self) -> None:
        from mlflow.entities import Param, RunTag

        all_params = [Param(key, value) for key, value in params(self.run.config(), self.run.manifest()).items()]
        all_tags = [RunTag(key, value[:8000]) for key, value in tags(self.run).items()]
        log_batch, run_id = self._connected().log_batch, self.sent.mlflow_run_id
        for start in range(0, max(len(all_params), len(all_tags)), 100):
            part = slice(start, start + 100)
            self._ask(log_batch, run_id, params=all_params[part], tags=all_tags[part])

    def _send_rows(self) -> None:
        """New rows, a batch at a time; the count of what was acknowledged is kept after each."""
        fallback = self._started_ms()
        while rows := self._rows.new():
            for row in rows:
                self._clock.add(row)
            for part in _chunks(rows[max(0, self.sent.rows - self._rows_read) :], BATCH // len(TRAIN)):
                self._log(point for row in part for point in row_points(row, fallback))
                self.sent.rows += len(part)
                self._save(error="")
            self._rows_read += len(rows)

    def _send_samples(self, ended: bool) -> None:
        """New samples, each as soon as the step that was under way is certain, so that sending again says the same."""
        while samples := self._samples.new():
            self._waiting += samples
        certain = len(self._waiting) if ended else self._clock.certain(self._waiting)
        samples, self._waiting = self._waiting[:certain], self._waiting[certain:]
        for part in _chunks(samples[max(0, self.sent.samples - self._samples_read) :], SAMPLES_AT_ONCE):
            self._log(point for sample in part for point in sample_points(sample, self._clock.at(sample)))
            self.sent.samples += len(part)
            self._save(error="")
        self._samples_read += certain

    def _log(self, points: Iterable[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(point.name, point.value, point.time_ms, point.step) for point in points]
        for part in _chunks(metrics, BATCH):
            self._ask(self._connected().log_batch, self.sent.mlflow_run_id, metrics=part)

    def _finish(self, status: rundir.Status) -> None:
        """Summary, checks, artifacts, note; the final status only when all of that is in."""
        ended = to_ms(status.ended) or self._started_ms()
        self._log(summary_points(self.run.summary(), ended))
        self._log(check_points(self.run.checks(), ended))
        self._send_texts()
        with tempfile.TemporaryDirectory() as staging:
            for file in artifacts(self.run, Path(staging)):
                self._ask(self._connected().log_artifact, self.sent.mlflow_run_id, str(file))
        self._drop_torn_artifacts()
        self._ask(self._connected().set_terminated, self.sent.mlflow_run_id, MLFLOW_STATUS[status.state], ended)
        self.sent.complete = True

    def _drop_torn_artifacts(self) -> None:
        """MLflow copies a local artifact under another name first; a sender that was killed leaves that behind."""
        if artifact_location(self.uri) is not None:
            place = self._ask(self._connected().get_run, self.sent.mlflow_run_id).info.artifact_uri
            for torn in Path(unquote(urlparse(place).path)).glob(".artifact.uploading.*"):
                torn.unlink(missing_ok=True)

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


def in_a_line(error: BaseException, uri: str) -> str:
    """An error as a person needs it: of what lies behind a request that failed, the innermost cause."""
    innermost = error
    while (deeper := innermost.__cause__ or innermost.__context__) is not None:
        innermost = deeper
    if uri.startswith("http") and isinstance(innermost, OSError):
        return f"{uri} does not answer: {innermost.strerror or innermost}"
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def _chunks(items: list, size: int) -> Iterator[list]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
