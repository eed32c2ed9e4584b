"""The paired comparison under simulated truths, and what its parts must do."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import linregress, ttest_1samp

from analysis.paired import drift, judge, order_effect, outliers, paired_interval, power
from tests.analysis.simulate import rates, simulate

CALLED = ("faster", "slower")


def called(found: dict[str, float]) -> float:
    return sum(found.get(name, 0.0) for name in CALLED)


# -- the rates that the design promises ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_identical_arms_are_seldom_called_and_mostly_equivalent(seed):
    found = rates(simulate(seed=seed).verdicts())
    assert called(found) <= 0.05
    assert found["equivalent"] >= 0.60


@pytest.mark.parametrize(("effect", "right", "wrong"), [(0.02, "faster", "slower"), (-0.02, "slower", "faster")])
def test_two_percent_is_found_with_the_right_sign(effect, right, wrong):
    found = rates(simulate(effect=effect, seed=4).verdicts())
    assert found[right] >= 0.90
    assert wrong not in found
    assert "equivalent" not in found


@pytest.mark.parametrize("pairs", [1, 2])
@pytest.mark.parametrize("effect", [0.0, 0.5])
def test_fewer_than_three_pairs_are_always_unresolved(pairs, effect):
    assert rates(simulate(comparisons=2000, pairs=pairs, effect=effect).verdicts()) == {"unresolved": 1.0}


@pytest.mark.parametrize("pairs", [3, 4, 5, 8, 16])
def test_interval_covers_the_truth(pairs):
    interval = simulate(pairs=pairs, effect=0.013, seed=5).intervals()
    covered = np.mean(np.abs(interval.estimate - np.log1p(0.013)) <= interval.half_width)
    assert 0.935 <= covered <= 0.99


@pytest.mark.parametrize("order", ["abba", "abab", "blocked"])
def test_a_strong_drift_is_not_an_effect_in_any_order(order):
    found = rates(simulate(order=order, drift=0.05, seed=6).verdicts())
    assert called(found) <= 0.06  # the 5 % of a 95 % interval, and the error of 4,000 draws


def test_without_positions_a_blocked_order_would_take_drift_for_an_effect():
    """The control of the test above: the correction is what does it."""
    sweeps = simulate(order="blocked", drift=0.05, seed=6)
    blind = judge(paired_interval(sweeps.baseline, sweeps.candidate), pairs=8, margin=0.01)
    assert called(rates(blind)) >= 0.95


def test_a_narrow_margin_leaves_the_interval_s_own_error():
    """With a margin too small to be equivalent, what remains is the 5 % of a 95 % interval."""
    found = rates(simulate(seed=7, comparisons=8000).verdicts(margin=1e-6))
    assert 0.03 <= called(found) <= 0.06
    assert abs(found["faster"] - found["slower"]) < 0.01


# -- against a textbook implementation -------------------------------------------------------------------------------


def test_interval_is_the_paired_t_interval_when_the_order_is_balanced():
    random = np.random.default_rng(0)
    base, cand = random.normal(0, 0.01, (2, 8))
    first = [0, 3, 4, 7, 8, 11, 12, 15]
    second = [1, 2, 5, 6, 9, 10, 13, 14]
    interval = paired_interval(base, cand, first, second)
    expected = ttest_1samp(cand - base, 0).confidence_interval(0.95)
    assert float(np.log(interval.low)) == pytest.approx(expected.low)
    assert float(np.log(interval.high)) == pytest.approx(expected.high)
    assert float(interval.drift_removed) == 0


def test_drift_is_a_regression_on_the_order():
    random = np.random.default_rng(1)
    places = np.arange(0.5, 16, 2)
    values = 0.002 * places + random.normal(0, 0.003, 8)
    trend, expected = drift(values, places), linregress(places, values)
    assert trend.effect == pytest.approx(np.expm1(expected.slope * 14))
    assert trend.p == pytest.approx(expected.pvalue)


def test_running_second_is_found():
    second = np.array([True, False] * 4)
    found = order_effect(0.01 + np.where(second, -0.02, 0.02) + 0.001 * np.random.default_rng(2).normal(size=8), second)
    assert found.effect == pytest.approx(np.expm1(-0.02), rel=0.1)
    assert found.p < 0.001
    assert np.isnan(order_effect(np.zeros(8), np.ones(8, bool)).p)


# -- power ------------------------------------------------------------------------------------------------------------


def test_detectable_effect_is_found_with_about_eighty_percent():
    sd = np.sqrt(2) * 0.007
    one = simulate(comparisons=1, run_sd=0.007, step_sd=0, drift=0).intervals()
    reference = paired_interval(np.zeros(8), np.full(8, 0.0) + sd * np.array([1, -1] * 4) * np.sqrt(7 / 8))
    assert float(reference.pair_sd) == pytest.approx(sd)
    detectable = power(reference, 8).detectable
    assert one.estimate.shape == (1,)
    found = rates(simulate(run_sd=0.007, step_sd=0, drift=0, effect=detectable, seed=8).verdicts(margin=1e-6))
    assert 0.75 <= found["faster"] <= 0.88


def test_pairs_needed_find_one_percent():
    reference = paired_interval(np.zeros(8), 0.007 * np.sqrt(2) * np.array([1, -1] * 4) * np.sqrt(7 / 8))
    needed = power(reference, 8, effect=0.01).pairs_needed
    assert needed is not None
    arguments = {"run_sd": 0.007, "step_sd": 0.0, "drift": 0.0, "effect": 0.01, "comparisons": 3000}
    assert rates(simulate(pairs=needed, seed=9, **arguments).verdicts(margin=1e-6))["faster"] >= 0.77
    assert rates(simulate(pairs=needed // 2, seed=9, **arguments).verdicts(margin=1e-6))["faster"] < 0.70


def test_power_of_one_pair_is_unknown():
    found = power(paired_interval([0.0], [0.1]), 1)
    assert np.isnan(found.detectable)
    assert found.pairs_needed is None


# -- closed against what is not a number ------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_is_never_called(bad):
    values = np.zeros(8)
    values[3] = bad
    with np.errstate(invalid="ignore"):
        verdict = judge(paired_interval(np.zeros(8), values), pairs=8, margin=0.01)
    assert verdict == "unresolved"


def test_zero_spread():
    same = paired_interval(np.zeros(4), np.zeros(4), [0, 3, 4, 7], [1, 2, 5, 6])
    assert (float(same.low), float(same.high)) == (1.0, 1.0)
    assert judge(same, pairs=4, margin=0.01) == "equivalent"
    assert judge(paired_interval(np.zeros(4), np.full(4, 0.03)), pairs=4, margin=0.01) == "faster"


def test_noise_floor_holds_back_equality_and_small_effects():
    values = 0.015 + 0.001 * np.array([1, -1, 1, -1, 1, -1, 1, -1])
    interval = paired_interval(np.zeros(8), values)
    assert judge(interval, pairs=8, margin=0.01) == "faster"
    assert judge(interval, pairs=8, margin=0.01, floor=0.02) == "unresolved"
    assert judge(interval, pairs=8, margin=0.02, floor=0.02) == "equivalent"
    wide = paired_interval(np.zeros(8), 0.015 + 0.012 * np.array([1, -1] * 4))
    assert judge(wide, pairs=8, margin=0.01) == "faster"
    assert judge(wide, pairs=8, margin=0.01, floor=0.02) == "unresolved"


def test_resolution_bounds_the_interval_from_below():
    interval = paired_interval(np.zeros(4), np.zeros(4), resolution=0.02)
    assert float(interval.high) == pytest.approx(np.exp(0.02))
    assert judge(interval, pairs=4, margin=0.01) == "unresolved"


def test_outliers():
    assert outliers([0.0, 0.01, -0.01, 0.02, 5.0]) == [4]
    assert outliers([0.0, 0.01, 5.0]) == []
    assert outliers([1.0] * 9 + [2.0]) == [9]
    assert outliers([1.0, 1.0, 1.0, 1.0]) == []
