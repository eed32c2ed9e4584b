"""Numbers as a person reads them: changes in percent, values with their unit, counts with their noun."""

from __future__ import annotations

import math

from analysis.effects import Effect


def percent(value: float) -> str:
    """0.0123 as ``1.2 %``."""
    return "unknown" if not math.isfinite(value) else f"{_digits(100 * value)} %"


def share(value: float) -> str:
    """A relative difference that may be tiny: ``1.2 %`` or ``9.8e-06``."""
    if math.isinf(value):
        return "without bound"
    return percent(value) if not math.isfinite(value) or value >= 1e-4 or value == 0 else f"{value:.1e}"


def signed(value: float) -> str:
    return "unknown" if not math.isfinite(value) else f"{_digits(100 * value, sign=True)} %"


def change(ratio: float) -> str:
    """A ratio as a change: 1.02 is ``+2.0 %``."""
    return signed(ratio - 1)


def between(effect: Effect) -> str:
    if not math.isfinite(effect.low):
        return "unknown"
    return f"{_digits(100 * (effect.low - 1), sign=True)} to {_digits(100 * (effect.high - 1), sign=True)} %"


def _digits(value: float, *, sign: bool = False) -> str:
    """Two decimals below 10, one below 100; a real minus sign, none before a zero."""
    text = (
        f"{value:.1e}"
        if abs(value) >= 1e6
        else f"{value:.0f}"
        if abs(value) >= 100
        else f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.2f}"
    )
    text = text.removeprefix("-") if float(text) == 0 else text
    if sign and float(text) > 0:
        text = f"+{text}"
    return text.replace("-", "−")


def quantity_text(value: float, unit: str) -> str:
    """A value with its unit."""
    if not math.isfinite(value):
        return "–"
    return (f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:.4g} {unit}").rstrip()


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
