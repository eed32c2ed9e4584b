"""Loss equivalence: what is close passes, and nothing else does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.curves import Curve, compare_curves

STEPS = 40
PAIRS = 4


def arms(ratio=1.0, noise=2e-6, pairs=PAIRS, steps=STEPS, seed=0):
    """Paired curves; ``ratio`` is candidate/baseline, a number or shape (steps,)."""
    random = np.random.default_rng(seed)
    place = np.arange(1, steps + 1)
    base = 5.0 + 7 * np.exp(-place / 15)
    baseline = [Curve(place, base * (1 + noise * random.normal(size=steps)), f"b{i}") for i in range(pairs)]
    candidate = [Curve(place, base * ratio * (1 + noise * random.normal(size=steps)), f"c{i}") for i in range(pairs)]
    return baseline, candidate


def verdict(baseline, candidate, **arguments):
    return compare_curves(baseline, candidate, **arguments).verdict


def changed(curve: Curve, where, value) -> Curve:
    values = curve.values.copy()
    values[where] = value
    return Curve(curve.steps, values, curve.name)


def test_close_curves_are_equivalent():
    found = compare_curves(*arms(), expected=range(1, STEPS + 1))
    assert found.verdict == "equivalent"
    assert found.steps == STEPS
    assert not found.bitwise
    assert 1e-6 < found.max_difference < 2e-5
    assert found.first_divergence[1e-4] is None
    assert found.first_divergence[1e-6] is not None


def test_bitwise_equality_is_reported():
    baseline, _ = arms()
    found = compare_curves(baseline, [Curve(curve.steps, curve.values.copy()) for curve in baseline])
    assert (found.verdict, found.bitwise, found.max_difference) == ("equivalent", True, 0.0)
    one_off = [changed(baseline[0], 7, np.nextafter(baseline[0].values[7], 99)), *baseline[1:]]
    assert not compare_curves(baseline, one_off).bitwise


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (1.001, "equivalent"),
        (0.999, "equivalent"),
        (1.02, "different"),
        (0.98, "different"),
        (np.where(np.arange(STEPS) >= 30, 1.02, 1.0), "different"),
        (np.where(np.arange(STEPS) < 10, 1.02, 1.0), "different"),
        # 9 % worse at every step but the last, which is what a look at the end would pass.
        (np.where(np.arange(STEPS) < STEPS - 1, 1.09, 1.0), "different"),
        # Up and down by the same amount: the mean over all steps is nothing.
        (np.where(np.arange(STEPS) < 20, 1.02, 1 / 1.02), "different"),
        # One step three times as high, in every pair.
        (np.where(np.arange(STEPS) == 25, 3.0, 1.0), "different"),
    ],
)
def test_known_ratios(ratio, expected):
    assert verdict(*arms(ratio)) == expected


def test_a_spike_in_a_single_run_is_not_equivalent():
    baseline, candidate = arms(noise=1e-7)
    candidate[2] = changed(candidate[2], 25, candidate[2].values[25] * 1.08)
    found = compare_curves(baseline, candidate, margin=0.005)
    assert found.verdict == "unresolved"
    assert "step 26" in found.reason


def test_wide_noise_is_unresolved_and_named():
    found = compare_curves(*arms(noise=0.01))
    assert found.verdict == "unresolved"
    assert "the margin is 0.5 %" in found.reason


@pytest.mark.parametrize("pairs", [1, 2])
def test_fewer_than_three_pairs_are_unresolved(pairs):
    assert verdict(*arms(pairs=pairs)) == "unresolved"
    baseline, _ = arms(pairs=pairs)
    assert "all values are the same" in compare_curves(baseline, baseline).reason


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, STEPS // 2, STEPS - 1, slice(None)], ids=["first", "middle", "last", "whole"])
@pytest.mark.parametrize("runs", [1, PAIRS])
@pytest.mark.parametrize("arm", [0, 1], ids=["baseline", "candidate"])
def test_what_is_no_number_is_different_in_any_place(bad, where, runs, arm):
    both = arms()
    both[arm][:runs] = [changed(curve, where, bad) for curve in both[arm][:runs]]
    found = compare_curves(*both)
    assert found.verdict == "different"
    assert "not finite" in found.reason
    assert ("baseline", "candidate")[arm] in found.reason


def test_the_same_nan_in_both_arms_proves_nothing():
    both = arms()
    for curves in both:
        curves[:] = [changed(curve, slice(None), np.nan) for curve in curves]
    found = compare_curves(*both)
    assert found.verdict == "unresolved"
    assert not found.bitwise


@pytest.mark.parametrize(
    "kept", [range(1, 28), [s for s in range(1, STEPS + 1) if s != 20], range(2, STEPS + 1), []], ids=str
)
@pytest.mark.parametrize("arm", [0, 1, None])
def test_a_missing_step_is_never_equivalent(kept, arm):
    """Cut short, a gap, without the first step, empty; in one arm, the other, or both."""
    both = arms()
    for index in (0, 1) if arm is None else (arm,):
        for number, curve in enumerate(both[index]):
            inside = np.isin(curve.steps, list(kept))
            both[index][number] = Curve(curve.steps[inside], curve.values[inside], curve.name)
    assert verdict(*both, expected=range(1, STEPS + 1)) == "unresolved"


def test_more_steps_than_the_other_arm_are_noticed_without_knowing_what_was_expected():
    baseline, _ = arms(steps=40)
    _, candidate = arms(steps=30)
    found = compare_curves(baseline, candidate)
    assert found.verdict == "unresolved"
    assert "10 steps, the first is 31" in found.reason


def test_no_pairs_and_no_positive_loss():
    assert verdict([], []) == "unresolved"
    both = arms()
    both[1][0] = changed(both[1][0], 5, 0.0)
    assert "not positive at step 6" in compare_curves(*both).reason


def test_first_divergence():
    ratio = np.ones(STEPS)
    ratio[10:] = 1 + 5e-5
    ratio[20:] = 1 + 5e-4
    found = compare_curves(*arms(ratio, noise=0.0))
    assert found.first_divergence == {1e-6: 11, 1e-4: 21, 1e-2: None}
    assert found.max_step is not None
    assert found.max_step > 20
    assert found.max_difference == pytest.approx(5e-4)


def test_a_repeated_step_counts_with_its_last_value():
    curve = Curve.of([(1, 5.0), (2, 4.0), (3, 9.0), (2, 3.5), (3, 3.0)])
    assert curve.steps.tolist() == [1, 2, 3]
    assert curve.values.tolist() == [5.0, 3.5, 3.0]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_equivalent_only_if_every_value_is_a_close_number(data):
    """Whatever is planted: ``equivalent`` implies that all steps are there, finite, and within ten margins."""
    pairs, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 8))
    value = st.one_of(st.just(3.0), st.floats(0.1, 10), st.just(float("nan")), st.just(float("inf")))
    kept = st.sets(st.integers(1, steps), min_size=max(0, steps - 1))

    def arm() -> list[Curve]:
        return [Curve.of([(step, data.draw(value)) for step in data.draw(kept)]) for _ in range(pairs)]

    baseline, candidate = arm(), arm()
    with np.errstate(all="ignore"):
        found = compare_curves(baseline, candidate, expected=range(1, steps + 1))
    if found.verdict == "equivalent":
        assert pairs >= 3
        for one, other in zip(baseline, candidate, strict=True):
            assert one.steps.tolist() == other.steps.tolist() == list(range(1, steps + 1))
            assert (np.abs(other.values / one.values - 1) <= 0.05).all()


def test_simulated_curves_of_the_same_training_are_seldom_different():
    """Independent noise of 0.2 % a step and 0.1 % a run, 8 pairs: no false alarm in 200, most equivalent."""
    found = []
    for seed in range(200):
        random = np.random.default_rng(seed)
        baseline, candidate = arms(noise=2e-3, pairs=8, seed=seed)
        candidate = [Curve(c.steps, c.values * (1 + random.normal(0, 1e-3)), c.name) for c in candidate]
        found.append(verdict(baseline, candidate))
    assert found.count("different") == 0
    assert found.count("equivalent") >= 190
