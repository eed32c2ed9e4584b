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


def lag_correlation(values: FloatArray) -> float:
    """Correlation of neighbouring values; 0 for constant ones."""
    centred = values - values.mean()
    square = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / square if square > 0 else 0.0


def median_interval(values: FloatArray, confidence: float) -> tuple[float, float, float]:
    """Median and its interval from order statistics: ``(median, low, high)``; values in the order of time.

    Without correlation the interval is distribution-free. Positive correlation from value to value (first-order
    autoregressive, estimated with its small-sample bias removed) widens it: the sum of the values' signs then varies
    by ``1 + 2 sum (2 / pi) asin(correlation ** lag)`` times as much. With fewer than six values it is the whole range,
    which covers less than 95 %.
    """
    ordered, n = np.sort(values), len(values)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    inflation = _sign_inflation(values)
    if inflation > 1:
        z *= 1 + 2 * inflation / n  # the inflation is itself an estimate from few effective values
    rank = max(0, math.floor(n / 2 - z * math.sqrt(inflation * n) / 2))
    return float(np.median(ordered)), float(ordered[rank]), float(ordered[n - 1 - rank])


def _sign_inflation(values: FloatArray) -> float:
    n, limit = len(values), 3 * robust_sd(values)
    if n < 4 or limit == 0:
        return 1.0
    raw = lag_correlation(np.clip(values - np.median(values), -limit, limit))
    correlation = min(0.9, max(0.0, raw + (1 + 3 * raw) / n))
    lags = correlation ** np.arange(1, 60)
    return 1 + 2 * float((2 / math.pi * np.arcsin(lags)).sum())
