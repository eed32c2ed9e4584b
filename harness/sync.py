"""``python -m harness.sync [RUN ...]``: send run directories to MLflow, as often as you like, with the same result."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harness import rundir
from harness.mlflow_client import URI, default_uri, load
from harness.privacy import MASK
from harness.progress import printable
from harness.repair import repair
from harness.rundir import RunDir, find_runs
from harness.tracking import BeingSent, Tracker

POLL_S = 0.2
NICENESS = 10  # the training comes first


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.sync", description=__doc__)
    parser.add_argument("run", nargs="*", type=Path, help="run directories (default: all below --runs that need it)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="directory of all runs (default: runs)")
    parser.add_argument(
        "--uri", help="MLflow tracking URI (default: that of the run's config, else the local database)"
    )
    parser.add_argument("--follow", action="store_true", help="keep sending until the run has ended (used by a pilot)")
    parser.add_argument("--flush-s", type=float, default=5.0, help="with --follow: seconds between two sendings")
    parser.add_argument("--tell", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.follow:
        return follow(RunDir(options.run[0]), options.uri or os.environ[URI], options.flush_s, options.tell)
    missing = [str(path) for path in options.run if not (path / rundir.STATUS).exists()]
    if missing:
        print(f"harness.sync: no run directory: {', '.join(missing)} (it has no status.json)", file=sys.stderr)
        return 2
    runs = [RunDir(path) for path in options.run] or find_runs(options.runs)
    try:
        return sync(runs, options.uri, everything=bool(options.run))
    except KeyboardInterrupt:
        print("harness.sync: interrupted; the same command goes on where it broke off", file=sys.stderr)
        return 130


def sync(runs: Sequence[RunDir], uri: str | None, *, everything: bool) -> int:
    """Send what is missing of each run, complete ones only with ``everything``; 1 if any could not be sent.

    A server that answers nothing is not asked again for the next run.
    """
    failed, failing = False, set()
    for run in runs:
        if (repaired := repair(run)) is not None:
            print(printable(f"{run.path}: {repaired.reason}; marked as killed"))
        status = run.status()
        if status is None or status.state == rundir.RUNNING:
            print(f"{run.path}: still running, its pilot sends it")
            continue
        where = uri or uri_of(run)
        tracker = Tracker(run, where)
        if tracker.sent.complete and not everything:
            continue
        if where in failing:
            print(f"{run.path}: not sent, it is the same server", file=sys.stderr)
            continue
        if MASK in where:
            why = f"the URI had a password, which is not kept: give --uri or {URI}"
            print(f"{run.path}: not sent: {why}", file=sys.stderr)
            failed = True
            continue
        before = tracker.sent.rows
        try:
            tracker.send()
        except BeingSent as error:
            print(f"{run.path}: {error}")
        except Exception as error:  # whatever the server or its client does, the run directory stays the truth
            why, failed = tracker.note_error(error), True
            if not tracker.reached:
                failing.add(where)
            print(f"{run.path}: not sent: {why}", file=sys.stderr)
        else:
            print(f"{run.path}: sent ({tracker.sent.rows - before} new rows of {tracker.sent.rows})")
    return int(failed)


def uri_of(run: RunDir) -> str:
    """The tracking URI that the run's configuration names, else the database in its directory of runs.

    The configuration is stored without passwords: a URI that had one is taken from MLFLOW_TRACKING_URI.
    """
    tracking = run.config().get("tracking")
    uri = tracking.get("uri") if isinstance(tracking, dict) else None
    if isinstance(uri, str) and MASK in uri:
        uri = os.environ.get(URI, uri)
    return uri if isinstance(uri, str) and uri else default_uri(run.path.parent.parent)


def follow(run: RunDir, uri: str, flush_s: float, tell: int | None = None) -> int:
    """Send a run while it grows and until it is complete. A failure is recorded and tried again at the next flush."""
    os.nice(NICENESS)
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # Slurm sends it to all processes of a job; the end is still to be sent
    told = Told(tell)
    load()  # here, so that the time it takes is not taken for the server's
    told.line("ready")
    tracker = Tracker(run, uri, answered=lambda seconds: told.line(f"ok {seconds:.3f}"))
    while not tracker.sent.complete:
        try:
            tracker.send()
        except Exception as error:
            told.line(f"failed {tracker.note_error(error)}")
        if not tracker.sent.complete:
            _wait_for_end(run, flush_s)
    return 0


class Told:
    """The other end of the pilot's pipe. A pilot that does not read it is not waited for."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        if descriptor is not None:
            os.set_blocking(descriptor, False)

    def line(self, text: str) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, f"{text}\n".encode("utf-8", "replace"))


def _wait_for_end(run: RunDir, seconds: float) -> None:
    """Wait for the next flush; shorter if the run ends meanwhile."""
    ended_before = _has_ended(run)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (ended_before or not _has_ended(run)):
        time.sleep(POLL_S)


def _has_ended(run: RunDir) -> bool:
    status = run.status()
    return status is not None and status.state != rundir.RUNNING


if __name__ == "__main__":
    sys.exit(main())
