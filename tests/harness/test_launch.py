"""Processes of a run are found, ended and never outlive the harness (no torch)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from harness.launch import TrainingProcesses, processes_of, torchrun_command
from tests.conftest import ROOT, environment

SPAWNS_IN_NEW_SESSION = """
import subprocess, sys, time
rank = "import time; print('rank', flush=True); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", rank], start_new_session=True)
print("agent", flush=True)
time.sleep(60)
"""


def running(source: str, run_id: str) -> TrainingProcesses:
    return TrainingProcesses([sys.executable, "-c", source], run_id=run_id, env={})


def read_until(processes: TrainingProcesses, text: bytes) -> bytes:
    seen = b""
    deadline = time.monotonic() + 20
    while text not in seen and time.monotonic() < deadline:
        seen += b"".join(data for _, data in processes.read(0.2))
    return seen


def test_command_shows_only_rank_0_and_keeps_every_rank_in_files() -> None:
    command = torchrun_command(num_ranks=64, log_dir="logs", arguments=["--module", "harness.titan"])
    assert command[0].endswith("torchrun")
    assert command[1:] == [
        "--nproc_per_node=64", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "--local-ranks-filter=0",
        "--role=rank", "--tee=3", "--log-dir=logs", "-m", "harness.titan", "--module", "harness.titan",
    ]  # fmt: skip


def test_reads_bytes_as_they_are_and_knows_the_end() -> None:
    processes = running("import sys; sys.stdout.buffer.write(b'a\\x00\\xff\\r\\n'); sys.stderr.write('b')", "bytes-1")
    seen = b""
    while not processes.ended:
        seen += b"".join(data for _, data in processes.read(0.2))
    processes.close()
    assert sorted(seen) == sorted(b"a\x00\xff\r\nb")
    assert processes.exit_code == 0


def test_kill_reaches_processes_in_sessions_of_their_own() -> None:
    processes = running(SPAWNS_IN_NEW_SESSION, "sessions-1")
    read_until(processes, b"rank")
    assert len(processes_of("sessions-1")) == 2
    assert len(processes.kill()) == 2
    processes.close()
    assert processes_of("sessions-1") == []
    assert processes.exit_code == -signal.SIGKILL


def test_kill_spares_other_runs() -> None:
    one, other = running("import time; time.sleep(60)", "spare-1"), running("import time; time.sleep(60)", "spare-10")
    time.sleep(0.2)
    one.kill()
    assert len(processes_of("spare-10")) == 1
    other.kill()
    one.close()
    other.close()


def test_torchrun_dies_with_a_killed_harness(tmp_path: Path) -> None:
    source = textwrap.dedent("""
        import sys, time
        from harness.launch import TrainingProcesses
        processes = TrainingProcesses([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"],
                                      run_id="orphan-1", env={})
        print(processes.read(10), flush=True)
        time.sleep(60)
    """)
    with subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, env=environment(), cwd=ROOT
    ) as harness:
        assert harness.stdout is not None
        harness.stdout.readline()
        assert len(processes_of("orphan-1")) == 1
        os.kill(harness.pid, signal.SIGKILL)
        harness.wait()
    deadline = time.monotonic() + 5
    while processes_of("orphan-1") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of("orphan-1") == []
