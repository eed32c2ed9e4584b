"""``python -m harness.sync [RUN ...]``: send run directories to MLflow, as often as you like, with the same result."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harness import rundir
from harness.launch import die_with_parent
from harness.rundir import RunDir, find_runs, repair
from harness.tracking import Tracker, default_uri

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
    options = parser.parse_args(arguments)
    if options.follow:
        return follow(RunDir(options.run[0]), options.uri, options.flush_s)
    missing = [str(path) for path in options.run if not (path / rundir.STATUS).exists()]
    if missing:
        print(f"harness.sync: no run directory: {', '.join(missing)} (it has no status.json)", file=sys.stderr)
        return 2
    runs = [RunDir(path) for path in options.run] or find_runs(options.runs)
    return sync(runs, options.uri, everything=bool(options.run))


def sync(runs: Sequence[RunDir], uri: str | None, *, everything: bool) -> int:
    """Send what is missing of each run, complete ones only with ``everything``; 1 if any could not be sent."""
    failed = 0
    for run in runs:
        repaired = repair(run)
        if repaired is not None:
            print(f"{run.path}: {repaired.reason}; marked as killed")
        status = run.status()
        if status is None or status.state == rundir.RUNNING:
            print(f"{run.path}: still running, its pilot sends it")
            continue
        tracker = Tracker(run, uri or uri_of(run))
        if tracker.sent.complete and not everything:
            continue
        before = tracker.sent.rows
        try:
            tracker.send()
        except Exception as error:  # whatever the server or its client does, the run directory stays the truth
            tracker.note_error(error)
            print(f"{run.path}: not sent: {tracker.sent.error}", file=sys.stderr)
            failed += 1
        else:
            print(f"{run.path}: sent ({tracker.sent.rows - before} new rows of {tracker.sent.rows})")
    return 1 if failed else 0


def uri_of(run: RunDir) -> str:
    """The tracking URI that the run's configuration names, else the database in its directory of runs.

    The configuration is stored without passwords: a URI that had one is taken from MLFLOW_TRACKING_URI.
    """
    uri = (run.config().get("tracking") or {}).get("uri")
    if uri and "[redacted]" in uri:
        uri = os.environ.get("MLFLOW_TRACKING_URI", uri)
    return uri or default_uri(run.path.parent.parent)


def follow(run: RunDir, uri: str, flush_s: float) -> int:
    """Send a run while it grows and until it is complete. A failure is recorded and tried again at the next flush."""
    die_with_parent()
    os.nice(NICENESS)
    tracker = Tracker(run, uri)
    while not tracker.sent.complete:
        try:
            tracker.send()
        except Exception as error:
            tracker.note_error(error)
        if not tracker.sent.complete:
            _wait_for_end(run, flush_s)
    return 0


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
