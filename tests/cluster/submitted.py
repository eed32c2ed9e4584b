"""Pilots submitted as a user does, and what they leave."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from harness.launch import environment_of
from harness.rundir import RunDir, Status, find_runs
from tests.cluster.slurm_cluster import SlurmCluster
from tests.conftest import ROOT, SHALLOW, Called, environment
from tests.faults.pilots import processes_naming, standin

PATIENCE_S = 120.0
REAL = ("+path=native_4b", "platform=cpu", *SHALLOW, "sampling.enabled=false")


def stand_in(steps: int = 20, pause: float = 0.05) -> tuple[str, ...]:
    """A pilot whose training takes no time to start."""
    return ("+path=native_4b", "platform=cpu", "scale.num_layers=2", *standin(steps, pause))


class Queue:
    """One user's directory of runs and the cluster."""

    def __init__(self, cluster: SlurmCluster, runs: Path) -> None:
        self.cluster, self.runs = cluster, runs
        self.env = environment() | cluster.environment

    def command(self, *arguments: str) -> list[str]:
        slurm = ("hydra/launcher=slurm", "hydra.launcher.poll_s=0.5", "hydra.launcher.time_min=10")
        return [sys.executable, "-m", "harness", "-m", *arguments, *slurm, f"runs={self.runs}"]

    def submit(self, *arguments: str) -> Called:
        """To the end of all of its jobs."""
        done = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, cwd=ROOT, env=self.env, timeout=300
        )
        return Called(done.returncode, done.stdout, done.stderr)

    def detach(self, *arguments: str) -> str:
        """Submit one job and return its id."""
        called = self.submit(*arguments, "hydra.launcher.detach=true")
        found = re.search(r"^job (\d+)", called.stdout, re.M)
        assert found is not None, called
        return found.group(1)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, cwd=ROOT, env=self.env,
        )  # fmt: skip

    def until(self, condition: Callable[[RunDir], bool], what: str) -> RunDir:
        """The only run, as soon as ``condition`` holds for it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if (found := find_runs(self.runs)) and condition(found[0]):
                assert len(found) == 1, [run.path for run in found]
                return found[0]
            time.sleep(0.1)
        raise TimeoutError(f"no {what} within {PATIENCE_S} s: {self.logs()}")

    def until_job(self, job_id: str, *states: str) -> str:
        deadline = time.monotonic() + PATIENCE_S
        state = ""
        while time.monotonic() < deadline:
            if (state := self.cluster.job_state(job_id)) in states:
                return state
            time.sleep(0.2)
        raise TimeoutError(f"job {job_id} is {state}, not {states}: {self.logs()}")

    def logs(self) -> str:
        files = sorted((self.runs / ".queue" / "logs").glob("*/*.out"))
        return "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in files)

    def left_over(self) -> list[str]:
        """Processes that name this directory of runs in their command or environment: none, on any node."""
        return processes_naming(str(self.runs))

    def assert_nothing_left(self, seconds: float = 20.0) -> None:
        """What is being ended is given a moment."""
        deadline = time.monotonic() + seconds
        while (found := self.left_over()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found == []


def status_of(run: RunDir) -> Status:
    status = run.status()
    assert status is not None
    return status


def has_steps(count: int) -> Callable[[RunDir], bool]:
    return lambda run: sum(1 for _ in run.rows()) >= count


def has_state(state: str) -> Callable[[RunDir], bool]:
    return lambda run: (status := run.status()) is not None and status.state == state


def with_cache(runs: Path, cache: Path) -> Path:
    """A directory of runs with tokenizer and corpus made before."""
    runs.mkdir(parents=True, exist_ok=True)
    shutil.copytree(cache, runs / ".cache")
    return runs


def interrupt(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    return output


def node_of(pid: int) -> str:
    return environment_of(pid).get("SLURMD_NODENAME", "")
