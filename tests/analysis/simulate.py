"""Thousands of simulated sweeps at once: the log of each run's steady median, as the summary would give it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.paired import Interval, judge, paired_interval
from analysis.synthetic import arm_order

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Sweeps:
    """Logarithms, shape (comparisons, pairs), and the places of the runs, shape (pairs,)."""

    baseline: Floats
    candidate: Floats
    baseline_position: Floats
    candidate_position: Floats

    def intervals(self) -> Interval:
        return paired_interval(self.baseline, self.candidate, self.baseline_position, self.candidate_position)

    def verdicts(self, margin: float = 0.01) -> NDArray[np.str_]:
        return judge(self.intervals(), pairs=self.baseline.shape[1], margin=margin)


def simulate(
    *,
    comparisons: int = 4000,
    pairs: int = 8,
    effect: float = 0.0,
    steps: int = 40,
    run_sd: float = 0.005,
    step_sd: float = 0.005,
    correlation: float = 0.5,
    drift: float = 0.01,
    order: str = "abba",
    seed: int = 0,
) -> Sweeps:
    """``effect``: relative gain of the candidate; everything else as in ``analysis.synthetic.Machine``."""
    random = np.random.default_rng(seed)
    runs = 2 * pairs
    noise = random.standard_normal((comparisons, runs, steps), dtype=np.float32) * step_sd
    for step in range(1, steps):
        noise[..., step] = correlation * noise[..., step - 1] + np.sqrt(1 - correlation**2) * noise[..., step]
    sequence = np.array(arm_order(pairs, order))
    place = np.arange(runs)
    logs = np.median(noise, axis=-1) + random.normal(0, run_sd, (comparisons, runs))
    logs = logs + drift * place / (runs - 1) + np.log1p(effect) * sequence[:, 1]
    # By block within each arm, so that entry i of both belongs to pair i.
    at = [np.array([np.flatnonzero((sequence == (block, arm)).all(1))[0] for block in range(pairs)]) for arm in (0, 1)]
    return Sweeps(
        baseline=logs[:, at[0]],
        candidate=logs[:, at[1]],
        baseline_position=at[0].astype(float),
        candidate_position=at[1].astype(float),
    )


def rates(verdicts: NDArray[np.str_]) -> dict[str, float]:
    names, counts = np.unique(verdicts, return_counts=True)
    return {str(name): int(count) / verdicts.size for name, count in zip(names, counts, strict=True)}
