"""``python -m harness.queue status|cancel``: the pilots that were submitted from here, and where they are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import slurm
from harness.queue.follow import describe, places
from harness.queue.submit import Submitted, submissions
from harness.terminal import make_console, relative

RECENT = 20


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.queue", description=__doc__)
    parser.add_argument("what", choices=("status", "cancel"), help="show the pilots, or cancel their jobs")
    parser.add_argument("job", nargs="*", help="Slurm job ids (default: status shows the latest, cancel needs them)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="directory of all runs (default: runs)")
    parser.add_argument("--all", action="store_true", help="status: also jobs that have ended long ago")
    options = parser.parse_args(arguments)
    known = slurm.own_jobs()
    if known is None:
        print("harness.queue: Slurm does not answer: is squeue here, and slurmctld running?", file=sys.stderr)
        return 1
    jobs = submissions(options.runs)
    if unknown := [job for job in options.job if job not in jobs]:
        print(f"harness.queue: not submitted from {options.runs}: {' '.join(unknown)}", file=sys.stderr)
        return 2
    if options.what == "cancel":
        if not options.job:
            print("harness.queue: which jobs? `python -m harness.queue status` shows their ids", file=sys.stderr)
            return 2
        return 0 if slurm.cancel(options.job) else 1
    chosen = [jobs[job] for job in options.job] or sorted(jobs.values(), key=lambda job: int(job.job_id))
    if not options.job and not options.all:
        running = [job for job in chosen if (state := known.get(job.job_id)) and not state.ended]
        chosen = sorted({*chosen[-RECENT:], *running}, key=lambda job: int(job.job_id))
    show(chosen, known, options.runs)
    return 0


def show(jobs: Sequence[Submitted], known: dict[str, slurm.JobState], runs: Path) -> None:
    """One line a pilot: job, Slurm's state, nodes, time, pilot, what it is doing, its run."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("job", "state", "nodes", "time", "pilot", "now", "run"):
        table.add_column(column, justify="right" if column == "time" else "left")
    for place in places(jobs):
        job = known.get(place.job.job_id)
        run = place.run(runs)
        table.add_row(
            place.job.job_id,
            job.state.lower() if job else "ended",
            ",".join(job.nodes) if job else "",
            job.elapsed if job else "",
            place.name,
            Text(describe(place, runs, job)),
            relative(run.path) if run else "",
        )
    make_console().print(table if jobs else "nothing has been submitted from here")


if __name__ == "__main__":
    sys.exit(main())
