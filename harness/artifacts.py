"""Which files of a run directory go to MLflow, and as what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness import rundir
from harness.privacy import redact_text
from harness.rundir import RunDir
from harness.scrub import Scrubber

DOCUMENTS = (
    rundir.CONFIG, rundir.MANIFEST, rundir.SUMMARY, rundir.CHECKS, rundir.STATUS, rundir.ROWS, rundir.SAMPLES,
    "weights.json",
)  # fmt: skip
OF_FAILURES = ("error.txt", "stall.txt")


def artifacts(run: RunDir, staging: Path) -> Iterator[Path]:
    """The files to attach: documents as they are, log and events scrubbed once more, and for a failed run its end."""
    yield from (run.file(name) for name in DOCUMENTS if run.file(name).exists())
    for file in (*run.log_files(), *sorted(run.path.glob("train.node*.log")), run.file(rundir.EVENTS)):
        if file.suffix == ".zst":
            yield file
        elif file.exists():
            yield scrubbed_copy(file, staging)
    status = run.status()
    if status is not None and status.state != rundir.FINISHED:
        (staging / "log_tail.txt").write_text(redact_text(run.log_tail(50)) + "\n", encoding="utf-8")
        yield staging / "log_tail.txt"
        yield from (scrubbed_copy(run.file(name), staging) for name in OF_FAILURES if run.file(name).exists())


def scrubbed_copy(file: Path, staging: Path) -> Path:
    scrubber, copy = Scrubber(), staging / file.name
    with file.open("rb") as source, copy.open("wb") as target:
        while data := source.read(1 << 20):
            target.write(scrubber.feed(data))
        target.write(scrubber.close())
    return copy
