"""What the self-test on real trainings makes of its verdicts; the trainings themselves are ``selftest --real``."""

from __future__ import annotations

import time

import numpy as np
import pytest

from analysis import real_selftest
from analysis.comparison import compare
from analysis.real_selftest import PLANTED, RIGHT, TOO_NOISY, TRUTHS, WRONG, judge
from analysis.synthetic import Machine, make_sweep
from tests.analysis.sweeps import candidates, read

IDENTICAL, SLEEP = TRUTHS


def sweep(effect, sd=0.002, pairs=4):
    runs = make_sweep(
        pairs=pairs,
        steps=12,
        seed=3,
        effect=effect,
        experiment="planted_sleep",
        machine=Machine(run_sd=sd, step_sd=sd, drift=0),
    )
    for run in candidates(runs):
        run.config["train"]["flags"] = list(PLANTED)
    for run in runs:
        run.config["train"].setdefault("flags", [])
        run.config["kernel"]["name"] = "baseline"
    return runs


@pytest.mark.parametrize(
    ("effect", "sd", "code"),
    [
        (real_selftest.TRUE_CHANGE, 0.002, RIGHT),
        (real_selftest.TRUE_CHANGE, 0.10, TOO_NOISY),
        (-real_selftest.TRUE_CHANGE, 0.002, WRONG),
        (0.0, 0.0002, WRONG),
    ],
)
def test_the_planted_sleep(effect, sd, code, tmp_path):
    comparison = compare(read(sweep(effect, sd), tmp_path), SLEEP.request)
    assert len(comparison.pairs) == 4
    assert [item.key for item in comparison.gate.declared] == ["train.flags"]
    assert judge(SLEEP, comparison) == code


@pytest.mark.parametrize(("effect", "code"), [(0.0, RIGHT), (0.2, WRONG), (-0.2, WRONG)])
def test_identical_arms(effect, code, tmp_path):
    """An effect is planted into every second run of what claims to be identical."""
    runs = make_sweep(pairs=4, steps=12, seed=3, effect=effect, experiment="aa", machine=Machine(run_sd=0.002))
    for run in runs:
        run.config["train"]["flags"] = []
        run.config["kernel"]["name"] = "baseline"
    comparison = compare(read(runs, tmp_path), IDENTICAL.request)
    assert len(comparison.pairs) == 4
    assert judge(IDENTICAL, comparison) == code


def test_another_difference_is_wrong_and_not_noise(tmp_path):
    runs = sweep(real_selftest.TRUE_CHANGE)
    for run in runs[1:3]:  # the candidates of the first two blocks
        run.manifest["git"]["changes"] = "b" * 16
    assert judge(SLEEP, compare(read(runs, tmp_path), SLEEP.request)) == WRONG


def test_what_is_swept_is_what_is_selected():
    assert SLEEP.swept == "train.flags=[],[--override.imports,harness.titan.planted_sleep.sleeps]"
    assert IDENTICAL.swept == "train.flags=[],[]"
    assert IDENTICAL.request.identical


@pytest.mark.titan
def test_the_sleep_is_half_a_step(monkeypatch):
    """Steps of 100 ms on our own clock: the sleep counts neither itself nor the container's step after its member's."""
    pytest.importorskip("torchtitan")
    from harness.titan import cpu

    cpu.install()
    from harness.titan.planted_sleep import Sleeper

    clock, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    sleeper, member, container = Sleeper(), object(), object()
    for _ in range(20):
        clock[0] += 0.1
        sleeper(member, (), {})
        sleeper(container, (), {})
    assert len(slept) == 17
    assert np.allclose(slept, 0.05)
