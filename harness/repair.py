"""Set right what a harness that was killed left behind: its processes, its rows, its secrets and its status."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from harness import rundir, slurm
from harness.launch import processes_of
from harness.logs import Row, read_files
from harness.rundir import RunDir, Status, claimed, is_alive, now
from harness.scrub import scrub_files
from harness.streams import JsonLines, read_jsonl

TORCHRUN_LOGS, TRACKING_LOG, RESERVE = "ranks", "tracking.log", ".reserve"


def repair(run: RunDir) -> Status | None:
    """Mark a run whose recording process is gone as killed; return the new status, or None if there was nothing to do.

    A process on another host cannot be seen from here, so such a run is left alone, unless Slurm says that its job is
    over.
    """
    if not _vanished(run):
        return None
    with claimed(run, "repair") as mine:
        status = run.status() if mine and _vanished(run) else None  # another command may have been faster
        if status is None:
            return None
        end_processes(run.run_id)
        for file in run.path.glob(f".*.{status.pid}.tmp"):
            file.unlink(missing_ok=True)
        tidy(run)
        recover(run)
        state, reason = _what_happened(status)
        repaired = replace(status, state=state, reason=reason, ended=now())
        run.write_status(repaired)
        return repaired


def _vanished(run: RunDir) -> bool:
    status = run.status()
    if status is None or status.state != rundir.RUNNING:
        return False
    if status.host == socket.gethostname():
        return not is_alive(status)
    return (job := _job_of(status)) is not None and job.ended


def _job_of(status: Status) -> slurm.JobState | None:
    return slurm.job_state(status.job) if status.job else None


def _what_happened(status: Status) -> tuple[str, str]:
    """State and reason of a run whose recording process is gone."""
    job, during = _job_of(status), status.phase or "starting"
    if job is not None and job.ended:
        bad = slurm.bad_nodes(job.nodes)
        nodes = f", {', '.join(f'{name} is {state}' for name, state in bad.items())}" if bad else ""
        said = f"Slurm job {status.job} is over ({job.state}{nodes}), its pilot ended without a word while {during}"
        return (rundir.FAILED if bad or job.state == "NODE_FAIL" else rundir.KILLED), said
    return rundir.KILLED, f"the harness process {status.pid} vanished (killed, or a restart) while {during}"


def end_processes(run_id: str) -> list[int]:
    """Kill what of a run outlived its harness: the ranks die with it, but not what they started themselves."""
    pids = processes_of(run_id)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return pids


def tidy(run: RunDir) -> None:
    """Remove what only a living harness needs, and scrub what other programs wrote."""
    run.file(RESERVE).unlink(missing_ok=True)
    scrub_files(foreign_files(run))


def foreign_files(run: RunDir) -> Iterator[Path]:
    """Files of the run directory that did not go through the harness: those of torchrun and of the tracker."""
    for logs in (run.file(TORCHRUN_LOGS), *run.path.glob(f"{TORCHRUN_LOGS}.node*")):
        yield from logs.glob("*/**/*")
    yield run.file(TRACKING_LOG)


def recover(run: RunDir) -> int:
    """Append the rows and events of the log that the harness did not get round to; return the number of rows.

    The log is written first and the reader is a function of its bytes, so what is there is the beginning of what the
    log gives. A torn last line counts as not there.
    """
    if not (files := run.log_files()):
        return 0
    records = list(read_files(files))
    rows = [record for record in records if isinstance(record, Row)]
    others = [record for record in records if not isinstance(record, Row)]
    known_rows = sum(1 for _ in read_jsonl(run.file(rundir.ROWS)))
    known_others = sum(1 for event in read_jsonl(run.file(rundir.EVENTS)) if event.get("line"))
    for name, missing in ((rundir.ROWS, rows[known_rows:]), (rundir.EVENTS, others[known_others:])):
        if missing:
            stream = JsonLines(run.file(name))
            stream.append(*(record.to_json() for record in missing))
            stream.close()
    return len(rows[known_rows:])
