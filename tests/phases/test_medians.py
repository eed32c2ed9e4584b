"""Level, noise and the interval of a median."""

from __future__ import annotations

import numpy as np
import pytest

from harness.medians import lag_correlation, median_interval, robust_sd
from tests.phases.series import red


def test_the_interval_of_nine_uncorrelated_values_is_the_textbook_one() -> None:
    values = np.array([3.0, 9.0, 1.0, 7.0, 5.0, 2.0, 8.0, 4.0, 6.0])  # second and eighth: 1 - 2 * 10 / 512 = 96.1 %
    assert lag_correlation(values) < 0
    assert median_interval(values, 0.95) == (5.0, 2.0, 8.0)


def test_six_values_give_their_range() -> None:
    assert median_interval(np.array([2.0, 1.0, 6.0, 3.0, 5.0, 4.0]), 0.95) == (3.5, 1.0, 6.0)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
def test_the_interval_covers_with_and_without_memory(correlation: float) -> None:
    rng = np.random.default_rng(3)
    intervals = [median_interval(red(rng, 99, 0.02, correlation), 0.95) for _ in range(400)]
    assert sum(low <= 1 <= high for _, low, high in intervals) / 400 >= 0.93


def test_ignoring_memory_would_not_cover() -> None:
    """A control: shuffled values have lost their memory, and the interval is then too short for the mean level."""
    rng, covered = np.random.default_rng(4), 0
    for _ in range(400):
        _, low, high = median_interval(rng.permutation(red(rng, 99, 0.02, 0.6)), 0.95)
        covered += low <= 1 <= high
    assert covered / 400 < 0.85


def test_robust_sd_is_not_moved_by_outliers() -> None:
    values = np.random.default_rng(0).normal(10, 0.2, 2001)
    values[:50] = 1000
    assert robust_sd(values) == pytest.approx(0.2, rel=0.08)
