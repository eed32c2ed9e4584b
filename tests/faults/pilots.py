"""Pilots that faults happen to: started as a user does, met at a moment of their life, judged by what they leave."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.launch import environment_of, processes_of
from harness.logs import Row, read_files
from harness.logs.files import pieces
from harness.rundir import RunDir, find_runs
from tests.conftest import ROOT, SHALLOW, environment

STEP_LINE = re.compile(rb"step: *(\d+)  loss: *([\d.]+|nan|inf)")
PATIENCE_S = 180.0
STANDIN = str(Path(__file__).with_name("standin.py"))


@dataclass
class Pilot:
    """One ``python -m harness`` and the directory in which it runs; its output goes to ``output.txt`` there."""

    runs: Path
    process: subprocess.Popen[bytes]

    @property
    def run(self) -> RunDir:
        found = find_runs(self.runs)
        assert len(found) == 1, [run.path for run in found]
        return found[0]

    @property
    def output(self) -> str:
        return (self.runs.parent / "output.txt").read_text()

    def until(self, condition: Callable[[RunDir], bool], what: str) -> RunDir:
        """The run, as soon as ``condition`` holds for it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if (found := find_runs(self.runs)) and condition(found[0]):
                return found[0]
            assert self.process.poll() is None or (found and condition(found[0])), f"ended before {what}: {self.output}"
            time.sleep(0.01)
        raise TimeoutError(f"no {what} within {PATIENCE_S} s: {self.output}")

    def until_logged(self, text: bytes) -> RunDir:
        return self.until(lambda run: text in log_of(run), repr(text))

    def wait(self, seconds: float = PATIENCE_S) -> int:
        return self.process.wait(timeout=seconds)


def start_pilot(runs: Path, *arguments: str, cache: Path | None = None, env: dict[str, str] | None = None) -> Pilot:
    """``python -m harness +path=native_4b`` at its smallest; ``cache`` holds tokenizer and corpus made before."""
    runs.mkdir(parents=True, exist_ok=True)
    if cache is not None and not (runs / ".cache").exists():
        shutil.copytree(cache, runs / ".cache")
    with (runs.parent / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness", "+path=native_4b", f"runs={runs}", *SHALLOW, *arguments],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT,
            env=environment() | (env or {}), start_new_session=True,
        )  # fmt: skip
    return Pilot(runs, process)


def standin(steps: int = 30, pause: float = 0.01) -> list[str]:
    """Overrides that let the stand-in train instead of torchrun."""
    command = ",".join(f"'{word}'" for word in (sys.executable, "-S", STANDIN, str(steps), str(pause)))
    return [f"launch.command=[{command}]", f"train.steps={steps}", "platform.num_ranks=1", "sampling.enabled=false"]


def log_of(run: RunDir) -> bytes:
    try:
        return run.file("train.log").read_bytes()
    except OSError:
        return b""


def ranks_of(run: RunDir) -> dict[int, int]:
    """Pid of each rank that lives."""
    found: dict[int, int] = {}
    for pid in sorted(processes_of(run.run_id)):
        rank = environment_of(pid).get("LOCAL_RANK")
        if rank is not None:
            found.setdefault(int(rank), pid)
    return found


def torchrun_of(run: RunDir) -> int:
    """Pid of the launcher: the process of the run that is no rank."""
    (pid,) = (pid for pid in processes_of(run.run_id) if "LOCAL_RANK" not in environment_of(pid))
    return pid


def processes_naming(text: str) -> list[str]:
    """Processes that have ``text`` in their command or environment, this one left out."""
    mark, found = text.encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command, environ = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark in command or mark in environ:
                found.append(f"{entry.name}: {command.replace(bytes(1), b' ').decode(errors='replace')}")
    return found


def assert_gone(run: RunDir, seconds: float = 5.0) -> None:
    """No process is left; those that the kernel is about to kill are given a moment."""
    deadline = time.monotonic() + seconds
    while (found := processes_naming(run.run_id)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found == []


def assert_rows_complete(run: RunDir) -> list[dict]:
    """The rows are those of the log, read afresh and as a plain expression sees them; returns them."""
    rows = list(run.rows())
    read = [record.to_json() for record in read_files(run.log_files()) if isinstance(record, Row)]
    assert rows == read
    log = b"".join(data for file in run.log_files() for data in pieces(file))
    printed = [(int(step), float(loss)) for step, loss in STEP_LINE.findall(log[: log.rfind(b"\n") + 1])]
    assert repr([(row["step"], float(row["loss"])) for row in rows][: len(printed)]) == repr(printed)
    assert len(rows) - len(printed) in (0, 1)  # a last line without its line feed may be whole all the same
    return rows
