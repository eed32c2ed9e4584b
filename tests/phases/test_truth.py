"""The settle rule on series of known truth: the thresholds that the numbers of a run are trusted by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from harness.phases import NO_STEADY_STATE, STEADY, Phases, PhasesConfig, find_phases
from tests.phases.series import FAMILIES, STEADY_FAMILIES, Truth, draw

SEEDS = 300
NEVER_STEADY = tuple(name for name in FAMILIES if name not in STEADY_FAMILIES)


@dataclass(frozen=True)
class Case:
    truth: Truth
    found: Phases

    @property
    def boundary_error(self) -> float:
        steps = self.found.warmup_steps
        return np.inf if steps is None else abs(steps - self.truth.warmup)

    @property
    def slow(self) -> set[int]:
        return {slow.step for slow in self.found.slow_steps}


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Case]]:
    return {family: run(family) for family in FAMILIES}


def run(family: str, seeds: int = SEEDS, num_steps: int = 100, config: PhasesConfig | None = None) -> list[Case]:
    truths = [draw(family, seed, num_steps) for seed in range(seeds)]
    return [Case(truth, find_phases(truth.seconds, config, last_step=truth.last_step or None)) for truth in truths]


def share(flags: list[bool]) -> float:
    return sum(flags) / len(flags)


@pytest.mark.parametrize("family", STEADY_FAMILIES)
def test_warmup_ends_within_two_steps_of_the_truth(cases: dict[str, list[Case]], family: str) -> None:
    assert share([case.boundary_error <= 2 for case in cases[family]]) >= 0.95


@pytest.mark.parametrize("family", STEADY_FAMILIES)
def test_steady_series_are_rarely_called_never_steady(cases: dict[str, list[Case]], family: str) -> None:
    assert share([case.found.phase != STEADY for case in cases[family]]) <= 0.02


@pytest.mark.parametrize("family", NEVER_STEADY)
def test_never_steady_is_called_so(cases: dict[str, list[Case]], family: str) -> None:
    called = [case.found.phase == NO_STEADY_STATE and case.found.median is None for case in cases[family]]
    assert share(called) >= 0.95


def test_late_spikes_are_found_and_do_not_end_the_steady_part(cases: dict[str, list[Case]]) -> None:
    spikes = [(step in case.slow) for case in cases["late_spikes"] for step in case.truth.spikes]
    assert len(spikes) > SEEDS
    assert share(spikes) >= 0.95
    assert all(set(case.truth.spikes) >= set(case.found.recompile_steps) for case in cases["late_spikes"])


@pytest.mark.parametrize("family", STEADY_FAMILIES)
def test_less_than_one_false_spike_in_200_steps(cases: dict[str, list[Case]], family: str) -> None:
    false = sum(len(case.slow - {*case.truth.spikes, *case.truth.pauses}) for case in cases[family])
    steps = sum(int(case.found.steady_steps) for case in cases[family])
    assert 200 * false / steps < 1


@pytest.mark.parametrize("family", STEADY_FAMILIES)
def test_steady_median_is_unbiased_and_its_interval_covers(cases: dict[str, list[Case]], family: str) -> None:
    steady = [case for case in cases[family] if case.found.phase == STEADY]
    bias = np.mean([case.found.median / case.truth.level - 1 for case in steady])
    assert abs(bias) <= 0.002
    assert share([case.found.median_low <= case.truth.level <= case.found.median_high for case in steady]) >= 0.93


@pytest.mark.parametrize("num_steps", [40, 250, 1000])
@pytest.mark.parametrize("family", ["one_compile", "several_compiles", "late_spikes", "drift", "alternation"])
def test_other_lengths(family: str, num_steps: int) -> None:
    found = run(family, seeds=60, num_steps=num_steps)
    wanted = STEADY if family in STEADY_FAMILIES else NO_STEADY_STATE
    assert share([case.found.phase == wanted for case in found]) >= 0.95
    if wanted == STEADY:
        assert share([case.boundary_error <= 2 for case in found]) >= 0.95


@pytest.mark.parametrize("family", ["several_compiles", "ramp", "random_walk"])
def test_the_simple_rule_fails_where_the_real_one_is_needed(family: str) -> None:
    """A control: these thresholds can be missed."""
    found = run(family, seeds=60, config=PhasesConfig(rule="skip_first"))
    if family in STEADY_FAMILIES:
        assert share([case.boundary_error <= 2 for case in found]) < 0.8
    else:
        assert all(case.found.phase == STEADY for case in found)
