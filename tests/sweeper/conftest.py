"""The command in this process, which is ten times as fast as a new one, and a pilot that trains nothing."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.interrupts import EXIT_CODES, Interrupts
from harness.pilot import Outcome
from harness.plan import make_plan
from harness.rundir import FINISHED, KILLED
from harness.schema import PilotConfig
from tests.conftest import ROOT
from tests.sweeper.synthetic import leave

BASE = ("platform=cpu", "scale.num_layers=2", "tracking=off")


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """``python -m harness ARGUMENTS`` in this process: exit code, stdout, stderr. Ten times as fast as a new one."""

    def run(*arguments: str) -> tuple[int, str, str]:
        from hydra.core.global_hydra import GlobalHydra

        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(sys, "argv", ["python -m harness"])
        monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "harness", *arguments])
        monkeypatch.setitem(os.environ, "HYDRA_FULL_ERROR", "0")
        GlobalHydra.instance().clear()
        code = main([*arguments, *BASE, f"runs={tmp_path / 'runs'}"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def rows(output: str) -> list[list[str]]:
    """The cells of the first table."""
    lines = [line for line in output.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


@dataclass
class FakePilots:
    """Stands in for ``harness.pilot.run_pilot``: leaves a run directory, and does what is planned for its place."""

    ran: list[int] = field(default_factory=list)
    """Places in the order of the pilots that were started."""
    plans: dict[int, Callable[[], tuple[str, str, int]]] = field(default_factory=dict)
    """By place: gives state, reason and exit code, or raises."""
    speeds: dict[int, float | None] = field(default_factory=dict)

    def __call__(self, config: PilotConfig, *, argv: list[str], interrupts: Interrupts) -> Outcome:
        assert config.order is not None
        self.ran.append(config.order)
        state, reason, exit_code = self.plans.get(config.order, lambda: (FINISHED, "", 0))()
        if state == KILLED:
            interrupts.received.append(signal.SIGINT)
        plan = make_plan(config)
        run = leave(plan, state=state, reason=reason, exit_code=exit_code)
        speed = self.speeds.get(config.order, 1000 + config.order)
        run.write_json("summary.json", {"steady": {"tokens_per_s": speed}, "loss": {"last": 7.0}})
        return Outcome(run, state, reason, exit_code, plan.name)


@pytest.fixture(autouse=True)
def code_now(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The state of the code that sweeps see here; the work tree itself may change while tests run."""
    state = {"commit": "a" * 40, "dirty": False}
    monkeypatch.setattr("harness.sweep.resume.git_state", lambda directory: dict(state))
    return state


@pytest.fixture
def pilots(monkeypatch: pytest.MonkeyPatch) -> FakePilots:
    fake = FakePilots()
    monkeypatch.setattr("harness.pilot.run_pilot", fake)
    return fake


def interrupted() -> tuple[str, str, int]:
    return KILLED, "SIGINT", EXIT_CODES["SIGINT"]
