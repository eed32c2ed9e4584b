"""The self-test gives the right verdict on every truth, and notices when a guard of the chain is gone."""

from __future__ import annotations

import pytest

from analysis import comparison, curves, gate
from analysis.noise import Noise
from analysis.selftest import CASES, run_case

BY_TRUTH = {case.truth: case for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=[case.truth for case in CASES])
def test_every_truth_gets_its_verdict(case):
    result = run_case(case)
    assert result.ok, (result.throughput, result.loss, result.detail)


def nothing_refused(*arguments):
    return None


def no_gate(monkeypatch):
    monkeypatch.setattr(gate, "_difference", nothing_refused)


def no_leaving_out(monkeypatch):
    monkeypatch.setattr(gate, "_why_not", lambda run, ignored: "")


def no_copy_check(monkeypatch):
    monkeypatch.setattr(gate, "_copy_of", lambda run, seen: "")


def no_curve_refusal(monkeypatch):
    monkeypatch.setattr(curves, "_refusal", nothing_refused)


def no_floor(monkeypatch):
    monkeypatch.setattr(comparison, "_noise", lambda found, runs: Noise())


def one_window(monkeypatch):
    monkeypatch.setattr(curves, "WINDOWS", 1)
    monkeypatch.setattr(curves, "POINTWISE", 1e9)


def survivors_only(monkeypatch):
    monkeypatch.setattr(comparison, "_not_without_the_broken", lambda loss, found: loss)


@pytest.mark.parametrize(
    ("guard", "truth"),
    [
        (no_gate, "another sequence length"),
        (no_gate, "rehearsal against full scale"),
        (no_gate, "other uncommitted changes"),
        (no_floor, "same speed, identical arms differ by several percent"),
        (no_floor, "2 % faster there"),
        (no_leaving_out, "5 % faster, kernel never executed"),
        (no_leaving_out, "every step recompiles"),
        (no_copy_check, "one pair, copied eight times"),
        (no_curve_refusal, "curve cut short at step 28 of 40"),
        (no_curve_refusal, "step 20 missing in one run"),
        (survivors_only, "the same, found by the run's own check"),
        (one_window, "loss drifts away in the last quarter"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_missing_guard_is_noticed(guard, truth, monkeypatch):
    guard(monkeypatch)
    assert not run_case(BY_TRUTH[truth]).ok
