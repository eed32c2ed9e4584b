"""When a training is ended and what its end is, with processes that are real but train nothing (no torch)."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from rich.console import Console

from harness.interrupts import Interrupts
from harness.launch import TrainingProcesses, processes_of
from harness.logs import Event, Row
from harness.progress import Progress
from harness.recorder import Recorder
from harness.rundir import RunDir
from harness.schema import LaunchConfig
from harness.stacks import dump_stacks
from harness.watch import End, Watchdog, watch


def row(step: int, loss: float = 7.0) -> Row:
    return Row("train", 0, step, loss=loss)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The watchdog's time, set by hand."""
    now = [1000.0]
    monkeypatch.setattr("harness.watch.time.monotonic", lambda: now[0])
    return now


LIMITS = LaunchConfig(grace_s=10, stall_s=60, compile_stall_s=600, on_nonfinite="stop")


def test_stall_limits(clock: list[float]) -> None:
    """Long before the first step and after the last one that is logged, short between."""
    cases = [([], 600), ([1], 60), ([1, 2, 3], 60), ([9], 600), ([10], 600)]
    for steps, limit in cases:
        watchdog = Watchdog(LIMITS, Interrupts(), num_steps=10, log_freq=3)
        for step in steps:
            watchdog.saw_step(row(step))
        clock[0] += limit
        assert watchdog.orders() is None, (steps, limit)
        clock[0] += 1
        assert watchdog.orders() == "terminate", (steps, limit)
        assert watchdog.cause == f"stalled at step {steps[-1] if steps else 0}: no new step for {limit + 1} s"
        assert watchdog.stalled_at == (steps[-1] if steps else 0)


def test_saving_a_checkpoint_takes_its_time(clock: list[float]) -> None:
    watchdog = Watchdog(LIMITS, Interrupts(), num_steps=10)
    watchdog.saw_step(row(2))
    watchdog.saw_event(Event(kind="gc", line=1))
    clock[0] += 59
    watchdog.saw_event(Event(kind="checkpoint_save", line=2))
    clock[0] += 599
    assert watchdog.orders() is None
    watchdog.saw_step(row(3))
    clock[0] += 61
    assert watchdog.orders() == "terminate"


def test_grace_and_second_signal(clock: list[float]) -> None:
    interrupts = Interrupts()
    watchdog = Watchdog(LIMITS, interrupts, num_steps=10)
    interrupts.received.append(signal.SIGINT)
    assert [watchdog.orders(), watchdog.orders()] == ["terminate", None]
    clock[0] += 11
    assert watchdog.orders() == "kill"
    clock[0] -= 11
    assert watchdog.orders() is None
    interrupts.received.append(signal.SIGINT)
    assert watchdog.orders() == "kill"
    assert (watchdog.cause, watchdog.interrupt) == ("SIGINT", signal.SIGINT)


@pytest.mark.parametrize(("choice", "cause"), [("stop", "loss is nan at step 4"), ("warn", "")])
def test_nonfinite_loss(choice: str, cause: str, clock: list[float]) -> None:
    watchdog = Watchdog(LaunchConfig(on_nonfinite=choice), Interrupts(), num_steps=10)
    watchdog.saw_step(row(4, float("nan")))
    watchdog.saw_step(row(5, float("inf")))
    assert watchdog.cause == cause


def test_a_signal_that_comes_after_another_cause_is_not_the_cause(clock: list[float]) -> None:
    interrupts = Interrupts()
    watchdog = Watchdog(LIMITS, interrupts, num_steps=10)
    watchdog.end("disk full")
    interrupts.received.append(signal.SIGTERM)
    assert watchdog.orders() == "terminate"
    assert (watchdog.cause, watchdog.interrupt) == ("disk full", None)


# -- whole watches ----------------------------------------------------------------------------------------------------

RANK = """
import os, signal, subprocess, sys, time
from harness.launch import join_run
join_run()
print("step:  1  loss:  7.60000  grad_norm:  0.7000  memory:  0.51GiB(2.17%)  tps: 100  mfu: 0.00%", flush=True)
{then}
"""


def watched(tmp_path: Path, then: str, limits: LaunchConfig, look=str) -> tuple[End, RunDir]:
    run = RunDir.create(tmp_path, "pilot", "x")
    command = [sys.executable, "-c", RANK.format(then=textwrap.dedent(then))]
    processes = TrainingProcesses(command, run_id=run.run_id, env={"RANK": "0"}, num_ranks=1)
    recorder, watchdog = Recorder(run), Watchdog(limits, Interrupts(), num_steps=10)
    progress = Progress(Console(file=open(os.devnull, "w")), num_steps=10, num_ranks=1)  # noqa: SIM115
    end = watch(processes, recorder, progress, watchdog, look)
    assert processes_of(run.run_id) == []
    assert len(list(run.rows())) == 1
    return end, run


def test_stopped_process_is_described_and_ended(tmp_path: Path) -> None:
    then = "os.kill(os.getpid(), signal.SIGSTOP)"
    end, run = watched(tmp_path, then, LaunchConfig(stall_s=1.0, grace_s=0.5))
    assert (end.exit_code, end.cause) == (-9, "stalled at step 1: no new step for 1 s")
    assert "== rank 0, pid" in run.file("stall.txt").read_text()
    assert "T (stopped)" in run.file("stall.txt").read_text()
    (event,) = (event for event in run.events() if event["kind"] == "stall")
    assert event["data"]["step"] == 1


def test_sleeping_process_is_shown_where_it_sleeps(tmp_path: Path) -> None:
    then = "def stuck_here():\n    time.sleep(60)\nstuck_here()"
    _, run = watched(tmp_path, then, LaunchConfig(stall_s=1.0, grace_s=5))
    assert "stuck_here" in run.file("stall.txt").read_text()


def test_what_is_looked_after_can_end_it(tmp_path: Path) -> None:
    end, run = watched(tmp_path, "time.sleep(60)", LaunchConfig(grace_s=5), look=lambda: "disk nearly full")
    assert (end.exit_code, end.cause) == (-15, "disk nearly full")
    assert [event["data"] for event in run.events() if event["kind"] == "ended_by_harness"] == [
        {"message": "disk nearly full"}
    ]


def test_process_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    then = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(60)"
    end, _ = watched(tmp_path, then, LaunchConfig(grace_s=0.5), look=lambda: "enough")
    assert (end.exit_code, len(end.left_over)) == (-9, 1)


def test_last_words_after_sigterm_are_read(tmp_path: Path) -> None:
    then = "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\ntime.sleep(60)"
    _, run = watched(tmp_path, then, LaunchConfig(grace_s=10), look=lambda: "enough")
    assert "[rank0]:saved\n" in run.file("train.log").read_text()


def test_orphan_that_holds_the_pipe_does_not_hold_the_end(tmp_path: Path) -> None:
    then = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)"
    end, _ = watched(tmp_path, then, LaunchConfig())
    assert (end.exit_code, end.cause, len(end.left_over)) == (0, "", 1)


def test_no_stacks_of_a_run_that_is_gone() -> None:
    assert dump_stacks("no-such-run") == "no process of this run is left\n"


# -- signals ----------------------------------------------------------------------------------------------------------


def test_first_signal_raises_only_before_the_training() -> None:
    interrupts = Interrupts()
    with interrupts.caught():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert (interrupts.received, interrupts.exit_code) == ([signal.SIGTERM, signal.SIGINT], 143)


def test_noted_signals_raise_nothing_and_handlers_come_back() -> None:
    interrupts, before = Interrupts(), signal.getsignal(signal.SIGINT)
    with interrupts.caught():
        with interrupts.caught():
            interrupts.only_note()
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # the block around it knows of the first
    assert (interrupts.exit_code, len(interrupts.received)) == (130, 2)
    assert signal.getsignal(signal.SIGINT) is before


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts().caught() as interrupts:
            signal.raise_signal(signal.SIGHUP)
        assert interrupts.received == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_goes_without() -> None:
    seen = []

    def run() -> None:
        with Interrupts().caught() as interrupts:
            seen.append(interrupts.exit_code)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [0]
