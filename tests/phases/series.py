"""Step-time series of known truth, one family per way a run can go; every draw is fixed by family and seed.

Noise is multiplicative, 0.5 to 3 %; its distribution (normal, log-normal, Student with 5 degrees) goes by the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Rng = np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Truth:
    """A series and what is true of it. ``warmup`` is None where there is no steady state."""

    seconds: FloatArray
    level: float
    noise: float
    warmup: int | None
    spikes: tuple[int, ...] = ()
    """Steps, counted from 1, that are slow without a reason in the log."""
    pauses: tuple[int, ...] = ()
    """Steps that are slow for a reason that the log gives."""
    last_step: tuple[int, ...] = ()
    """Where not every step is logged: the steps that are."""


def draw(family: str, seed: int, num_steps: int = 100) -> Truth:
    """The series of a family for a seed."""
    rng = np.random.default_rng([sum(family.encode()), seed])
    return FAMILIES[family](rng, num_steps)


def white(rng: Rng, n: int, sd: float) -> FloatArray:
    """Factors around 1 with standard deviation ``sd`` and median 1."""
    kind = rng.integers(3)
    if kind == 0:
        return 1 + sd * rng.standard_normal(n)
    if kind == 1:
        return np.exp(sd * rng.standard_normal(n))
    return 1 + sd * rng.standard_t(5, n) / np.sqrt(5 / 3)


def red(rng: Rng, n: int, sd: float, correlation: float) -> FloatArray:
    """First-order autoregressive factors around 1 with stationary standard deviation ``sd``."""
    shock = rng.standard_normal(n) * np.sqrt(1 - correlation**2)
    value = np.empty(n)
    value[0] = rng.standard_normal()
    for i in range(1, n):
        value[i] = correlation * value[i - 1] + shock[i]
    return 1 + sd * value


def _start(rng: Rng) -> tuple[float, float]:
    return float(np.exp(rng.uniform(np.log(0.02), np.log(30)))), float(rng.uniform(0.005, 0.03))


def _factors(rng: Rng, size: int, low: float, high: float) -> FloatArray:
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


def no_compile(rng: Rng, n: int) -> Truth:
    level, sd = _start(rng)
    return Truth(seconds=level * white(rng, n, sd), level=level, noise=sd, warmup=0)


def one_compile(rng: Rng, n: int) -> Truth:
    quiet = no_compile(rng, n)
    quiet.seconds[0] *= _factors(rng, 1, 3, 300)[0]
    return replace(quiet, warmup=1)


def several_compiles(rng: Rng, n: int) -> Truth:
    quiet, count = no_compile(rng, n), int(rng.integers(2, 7))
    quiet.seconds[:count] *= _factors(rng, count, 1.8, 300)
    return replace(quiet, warmup=count)


def ramp(rng: Rng, n: int) -> Truth:
    """An excess of 0.2 to 5 levels that decays exponentially, in half of the draws behind one compile step."""
    quiet, compile_step = no_compile(rng, n), int(rng.integers(2))
    tau, start = float(rng.uniform(1.5, 9)), float(_factors(rng, 1, 0.2, 5)[0])
    excess = start * np.exp(-np.arange(n - compile_step) / tau)
    quiet.seconds[compile_step:] *= 1 + excess
    if compile_step:
        quiet.seconds[0] *= _factors(rng, 1, 10, 300)[0]
    return replace(quiet, warmup=compile_step + int((excess >= quiet.noise).sum()))


def straight_ramp(rng: Rng, n: int) -> Truth:
    """The excess falls along a straight line over 5 to 15 steps."""
    quiet, length = no_compile(rng, n), int(rng.integers(5, 16))
    excess = float(_factors(rng, 1, 0.2, 3)[0]) * np.clip(1 - np.arange(n) / length, 0, None)
    quiet.seconds[:] *= 1 + excess
    return replace(quiet, warmup=int((excess >= quiet.noise).sum()))


def late_spikes(rng: Rng, n: int) -> Truth:
    base, count = one_compile(rng, n), int(rng.integers(1, 4))
    steps = np.sort(rng.choice(np.arange(9, n + 1), count, replace=False))
    base.seconds[steps - 1] *= _factors(rng, count, 1.5, 100)
    return replace(base, spikes=tuple(int(step) for step in steps))


def checkpoints(rng: Rng, n: int) -> Truth:
    """Every 20 steps a checkpoint is written, which slows the following step."""
    base = one_compile(rng, n)
    steps = np.arange(21, n + 1, 20)
    base.seconds[steps - 1] *= _factors(rng, len(steps), 1.5, 10)
    return replace(base, pauses=tuple(int(step) for step in steps))


def log_freq_10(rng: Rng, n: int) -> Truth:
    """Steps 1, 10, 20, ... are logged, each with the mean over the steps since the last."""
    base = one_compile(rng, n)
    last = np.array([1, *range(10, n + 1, 10)])
    means = np.array([base.seconds[a:b].mean() for a, b in zip([0, *last[:-1]], last, strict=True)])
    return replace(base, seconds=means, last_step=tuple(int(step) for step in last))


def correlated(rng: Rng, n: int) -> Truth:
    """Noise with memory: correlation 0.2 to 0.6 from step to step."""
    level, sd = _start(rng)
    seconds = level * red(rng, n, sd, float(rng.uniform(0.2, 0.6)))
    seconds[0] *= _factors(rng, 1, 3, 300)[0]
    return Truth(seconds=seconds, level=level, noise=sd, warmup=1)


def drift(rng: Rng, n: int) -> Truth:
    """A straight line that rises or falls by 11 to 40 % over the run."""
    base, total = one_compile(rng, n), float(rng.uniform(0.11, 0.40))
    line = np.linspace(0, total, n)
    base.seconds[:] *= 1 + (line if rng.integers(2) else line[::-1])
    return replace(base, warmup=None)


def alternation(rng: Rng, n: int) -> Truth:
    """Two levels 10 to 60 % apart: every other step, in blocks of 3 to 20 steps, or at random."""
    base, gap = one_compile(rng, n), float(_factors(rng, 1, 0.10, 0.60)[0])
    kind = rng.integers(3)
    if kind == 0:
        high = np.arange(n) % 2 == 1
    elif kind == 1:
        high = (np.arange(n) // int(rng.integers(3, 21))) % 2 == 1
    else:
        high = rng.random(n) < rng.uniform(0.3, 0.7)
    base.seconds[high] *= 1 + gap
    return replace(base, warmup=None)


def random_walk(rng: Rng, n: int) -> Truth:
    """A level that wanders by more than 15 % from its lowest to its highest."""
    base = one_compile(rng, n)
    while True:
        walk = np.exp(np.cumsum(rng.uniform(0.008, 0.03) * rng.standard_normal(n)))
        if walk[1:].max() / walk[1:].min() > 1.15:
            break
    base.seconds[:] *= walk
    return replace(base, warmup=None)


FAMILIES: dict[str, Callable[[Rng, int], Truth]] = {
    family.__name__: family
    for family in (
        no_compile,
        one_compile,
        several_compiles,
        ramp,
        straight_ramp,
        late_spikes,
        checkpoints,
        log_freq_10,
        correlated,
        drift,
        alternation,
        random_walk,
    )
}
STEADY_FAMILIES = tuple(name for name in FAMILIES if name not in ("drift", "alternation", "random_walk"))
