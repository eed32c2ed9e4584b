"""Robust level, noise and the interval of a median, for values that may be correlated in time."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

MAD_TO_SD = 1.482602218505602
"""1 / the 0.75 quantile of the normal distribution: median absolute deviation to standard deviation."""


def robust_sd(values: FloatArray) -> float:
    """Standard deviation by the median absolute deviation; exact for normal noise, untouched by few outliers."""
    return float(MAD_TO_SD * np.median(np.abs(values - np.median(values))))


def median_interval(values: FloatArray, confidence: float) -> tuple[float, float, float]:
    """Median and its distribution-free interval from order statistics: ``(median, low, high)``.

    Needs six values for 95 %; with fewer the interval is the whole range.
    """
    ordered = np.sort(values)
    n = len(ordered)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rank = max(0, math.floor(n / 2 - z * math.sqrt(n) / 2))
    return float(np.median(ordered)), float(ordered[rank]), float(ordered[n - 1 - rank])
