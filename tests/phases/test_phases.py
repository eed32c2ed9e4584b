"""The rules on small series whose answer is plain."""

from __future__ import annotations

import numpy as np
import pytest

from harness.phases import NO_STEADY_STATE, STEADY, TOO_SHORT, PhasesConfig, find_phases

WOBBLE = np.array([1.00, 1.01, 0.99, 1.00, 1.02, 0.98, 1.00, 1.01, 0.99])


def flat(n: int) -> np.ndarray:
    """``n`` steps around 1 s, within 2 %."""
    return np.resize(WOBBLE, n)


def test_ten_steps_with_one_compile_step() -> None:
    found = find_phases([12.0, *WOBBLE])
    assert (found.phase, found.warmup_steps, found.first_steady_step, found.steady_steps) == (STEADY, 1, 2, 9)
    assert found.median == pytest.approx(1.0)
    assert found.compile_s == pytest.approx(11.0)
    assert found.recompile_steps == ()
    assert found.median_low <= 1.0 <= found.median_high


@pytest.mark.parametrize("seed", range(40))
def test_ten_noisy_steps_with_one_compile_step(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = 0.05 * (1 + rng.uniform(0.005, 0.03) * rng.standard_normal(10))
    steps[0] *= rng.uniform(3, 300)
    found = find_phases(steps)
    assert (found.phase, found.warmup_steps, found.steady_steps) == (STEADY, 1, 9)


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_too_few_steps(n: int) -> None:
    found = find_phases([12.0, *WOBBLE][:n])
    assert (found.phase, found.warmup_steps, found.median) == (TOO_SHORT, None, None)
    assert str(n - 1) in found.reason


def test_seven_steps_are_enough() -> None:
    assert find_phases([12.0, *WOBBLE][:7]).phase == STEADY


def test_no_step_at_all() -> None:
    assert find_phases([]).phase == TOO_SHORT


def test_a_warm_cache_has_no_warmup() -> None:
    found = find_phases(flat(50))
    assert (found.phase, found.warmup_steps, found.first_steady_step, found.compile_s) == (STEADY, 0, 1, 0.0)


def test_a_late_recompile_is_listed_and_paid_for() -> None:
    steps = np.array([30.0, *flat(49)])
    steps[29] = 5.0
    found = find_phases(steps)
    assert (found.phase, found.warmup_steps, found.recompile_steps) == (STEADY, 1, (30,))
    assert found.compile_s == pytest.approx(29.0 + 4.0, abs=0.05)
    assert found.slow_steps[0].ratio == pytest.approx(5.0, abs=0.02)
    assert found.mean > found.median


def test_a_planted_sleep_at_step_six_of_ten() -> None:
    steps = np.array([12.0, *WOBBLE])
    steps[5] += 2.0
    found = find_phases(steps)
    assert (found.phase, found.warmup_steps, found.recompile_steps) == (STEADY, 1, (6,))


def test_a_pause_that_the_log_explains_is_no_recompile() -> None:
    steps, causes = np.array([30.0, *flat(59)]), [""] * 60
    for step in (21, 41):
        steps[step - 1], causes[step - 1] = 3.0, "checkpoint"
    steps[49] = 4.0
    found = find_phases(steps, causes=causes)
    assert [(slow.step, slow.cause) for slow in found.slow_steps] == [
        (21, "checkpoint"),
        (41, "checkpoint"),
        (50, "recompile"),
    ]
    assert found.compile_s == pytest.approx(29.0 + 3.0, abs=0.05)


def test_frequent_pauses_are_a_second_level_only_if_nothing_explains_them() -> None:
    steps, causes = np.array([30.0, *flat(59)]), [""] * 60
    for step in range(4, 61, 4):
        steps[step - 1], causes[step - 1] = 3.0, "checkpoint"
    assert find_phases(steps, causes=causes).phase == STEADY
    assert find_phases(steps).phase == NO_STEADY_STATE


def test_a_pause_during_warmup_is_not_compile_time() -> None:
    steps, causes = np.array([30.0, 6.0, 9.0, *flat(57)]), [""] * 60
    causes[1] = "checkpoint"
    found = find_phases(steps, causes=causes)
    assert found.warmup_steps == 3
    assert found.compile_s == pytest.approx(29.0 + 8.0, abs=0.05)


def test_logging_every_tenth_step() -> None:
    last = [1, *range(10, 101, 10)]
    found = find_phases([30.0, *flat(10)], last_step=last)
    assert (found.warmup_steps, found.first_steady_step, found.steady_steps) == (1, 2, 99)
    assert found.compile_s == pytest.approx(29.0)


def test_a_recompile_inside_an_interval_of_ten_steps() -> None:
    last = [1, *range(10, 201, 10)]
    steps = np.array([30.0, *(1 + (flat(20) - 1) / 10)])
    steps[10] += 0.2  # one step of 3 s in ten
    found = find_phases(steps, last_step=last)
    assert found.recompile_steps == (100,)
    assert found.slow_steps[0].excess_s == pytest.approx(2.0, abs=0.05)


def test_steps_of_a_resumed_run_keep_their_numbers() -> None:
    found = find_phases([12.0, *flat(20)], last_step=range(51, 72))
    assert (found.warmup_steps, found.first_steady_step) == (1, 52)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (flat(60) * np.linspace(1, 1.2, 60), "drift"),
        (flat(60) * np.where(np.arange(60) % 2, 1.0, 1.3), "level"),
        (np.exp(np.linspace(0, 12, 60) % 3), "spread|level|wander"),
    ],
)
def test_reasons_name_what_is_wrong(steps: np.ndarray, said: str) -> None:
    found = find_phases(steps)
    assert found.phase == NO_STEADY_STATE
    assert any(word in found.reason for word in said.split("|"))
    assert (found.median, found.warmup_steps, found.compile_s) == (None, None, None)
    assert found.mean is not None


@pytest.mark.parametrize("num_steps", [10, 11, 12])
@pytest.mark.parametrize("ratio", [1.3, 2.0, 4.0])
def test_a_short_alternation_has_no_steady_state(ratio: float, num_steps: int) -> None:
    """The slow steps may be the majority, and their noise larger than that of the fast ones."""
    rng = np.random.default_rng(2)
    for first in (0, 1):
        steps = np.where((np.arange(num_steps) + first) % 2, ratio, 1.0) * rng.normal(1, 0.01, num_steps)
        assert find_phases(np.r_[15.0, steps]).phase != STEADY


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.03])
@pytest.mark.parametrize("num_steps", [9, 14, 20])
def test_a_short_steady_run_is_rarely_called_never_steady(num_steps: int, noise: float) -> None:
    rng = np.random.default_rng(3)
    series = (np.r_[15.0, rng.normal(1, noise, num_steps)] for _ in range(300))
    assert sum(find_phases(steps).phase == NO_STEADY_STATE for steps in series) <= 9  # 3 %


def test_the_slow_first_steps_are_known_without_a_steady_state() -> None:
    steps = flat(60) * np.where(np.arange(60) % 2, 1.0, 1.2)
    steps[:3] = 30.0, 20.0, 9.0
    found = find_phases(steps)
    assert (found.phase, found.warmup_steps, found.slow_first_steps) == (NO_STEADY_STATE, None, 3)
    assert find_phases([12.0, *WOBBLE]).slow_first_steps == 1
    assert find_phases(flat(20)).slow_first_steps == 0


@pytest.mark.parametrize(("noise", "phase"), [(0.12, STEADY), (0.5, NO_STEADY_STATE)])
def test_noise_widens_the_interval_until_it_says_nothing(noise: float, phase: str) -> None:
    steps = np.exp(noise * np.random.default_rng(1).standard_normal(40))
    found = find_phases([300.0, *steps])
    assert (found.phase, found.slow_first_steps) == (phase, 1)
    if phase == STEADY:
        assert 0.03 < found.median_high - found.median_low < 0.2
    else:
        assert "spread" in found.reason


def test_a_median_behind_a_ramp_starts_where_the_ramp_is_below_the_noise() -> None:
    steps = (1 + np.exp(-np.arange(100) / 5)) * (1 + 0.02 * np.random.default_rng(0).standard_normal(100))
    found = find_phases(steps)
    assert found.phase == STEADY
    assert abs(found.warmup_steps - 19.6) <= 2
    assert found.settled_from > found.first_steady_step
    assert found.measures["ramp_scale"] == pytest.approx(5, rel=0.2)


def test_a_series_without_any_noise() -> None:
    assert find_phases([30.0] + [1.0] * 20).warmup_steps == 1
    assert find_phases([1.0] * 20).warmup_steps == 0
    ramp = 1 + np.exp(-np.arange(100) / 3)
    assert find_phases(ramp).phase == STEADY


def test_skip_first_never_looks() -> None:
    config = PhasesConfig(rule="skip_first", skip=2)
    steps = [30.0, 20.0, 9.0, *flat(20)]
    found = find_phases(steps, config)
    assert (found.phase, found.rule, found.warmup_steps, found.recompile_steps) == (STEADY, "skip_first", 2, ())
    assert find_phases(steps[:7], config).phase == TOO_SHORT
    assert find_phases(flat(20), PhasesConfig(rule="skip_first", skip=0)).warmup_steps == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"step_s": [1.0, -1.0]}, "positive"),
        ({"step_s": [1.0, float("nan")]}, "finite"),
        ({"step_s": [1.0, 1.0], "last_step": [1]}, "last_step 1"),
        ({"step_s": [1.0, 1.0], "last_step": [2, 2]}, "increase"),
        ({"step_s": [1.0, 1.0], "causes": [""]}, "causes 1"),
        ({"step_s": [1.0], "config": PhasesConfig(rule="guess")}, "settle, skip_first"),
    ],
)
def test_bad_input_is_refused(arguments: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        find_phases(**arguments)
