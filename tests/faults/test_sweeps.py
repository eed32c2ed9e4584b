"""A sweep that is interrupted: the running job is cleaned up, the others are not begun, and it says how to go on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.rundir import find_runs
from tests.conftest import ROOT, SHALLOW, environment
from tests.faults.pilots import assert_gone, assert_rows_complete, log_of, standin

pytestmark = pytest.mark.titan


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_sweep(number: signal.Signals, code: int, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    arguments = ["-m", "+path=native_4b", "train.seed=1,2,3", f"runs={runs}", *SHALLOW, *standin(10, 0.05)]
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", *arguments, "tracking=off"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment(),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = sorted(find_runs(runs), key=lambda run: run.status().started)
        if len(found) == 2 and b"step:  2  loss" in log_of(found[1]):
            break
        time.sleep(0.01)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    first, second = sorted(find_runs(runs), key=lambda run: run.status().started)
    assert (first.status().state, second.status().state) == ("finished", "killed")
    assert second.status().reason == number.name
    assert 2 <= len(assert_rows_complete(second)) < 10
    assert_gone(second)
    assert "2 pilots are left, to go on type" in output
    commands = [line for line in output.splitlines() if line.startswith("  python -m harness ")]
    seeds = [[seed for seed in "123" if f"train.seed={seed}" in command.split()] for command in commands]
    assert seeds == [["2"], ["3"]]
    assert all("path=native_4b" in command for command in commands)
    assert "Traceback" not in output


def test_interrupt_before_anything_is_started() -> None:
    """The moment falls into the imports: a line, the exit code of the signal, no traceback."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from harness.__main__ import main; import sys; print('up', flush=True); "
         "sys.exit(main(['+path=native_4b', 'runs=/nowhere/at/all']))"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (143, "harness: interrupted before anything was started\n")
