"""Known truths through the whole chain: written as run directories, read back, selected, gated, compared. A verdict
that does not fit its truth is a fault of the chain, not of the data."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis import sources
from analysis.comparison import Comparison, Request, compare
from analysis.selection import Selector
from analysis.synthetic import Machine, SyntheticRun, make_sweep, write_sweep

REQUEST = Request(baseline=Selector.parse(["kernel=baseline"]), candidate=Selector.parse(["kernel=nki_rope"]))
NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One truth and the verdicts that may be given on it."""

    truth: str
    runs: Callable[[], list[SyntheticRun]]
    throughput: tuple[str, ...]
    loss: tuple[str, ...] = ("equivalent",)
    names: str = ""
    """What the reason or the difference must name; empty: nothing."""
    request: Request = REQUEST


@dataclass(frozen=True, kw_only=True)
class Result:
    case: Case
    throughput: str
    loss: str
    detail: str
    ok: bool


def run_case(case: Case) -> Result:
    """Write the case's runs, compare them as a user would, and hold the verdicts against the truth."""
    with tempfile.TemporaryDirectory() as folder:
        write_sweep(case.runs(), Path(folder))
        comparison = compare(sources.from_directories(Path(folder)), case.request)
    loss = comparison.loss.verdict if comparison.loss else "-"
    detail = _detail(comparison)
    ok = comparison.verdict in case.throughput and (loss in case.loss or loss == "-") and case.names in detail
    return Result(case=case, throughput=comparison.verdict, loss=loss, detail=detail, ok=ok)


def _detail(comparison: Comparison) -> str:
    """The reason that a person is given, as one line."""
    if not comparison.comparable:
        return "; ".join(str(item) for item in comparison.gate.undeclared)
    reasons = []
    effect = comparison.effect("throughput")
    if effect and effect.reason:
        reasons.append(effect.reason)
    if comparison.loss and comparison.loss.verdict != "equivalent":
        reasons.append(comparison.loss.reason)
    if comparison.left_out:
        item = comparison.left_out[0]
        reasons.append(f"{len(comparison.left_out)} left out: {item.reason}")
    return "; ".join(reasons)


def candidates(runs: Iterable[SyntheticRun]) -> list[SyntheticRun]:
    return [run for run in runs if run.config["kernel"]["name"] != "baseline"]


def _aa() -> list[SyntheticRun]:
    runs = make_sweep(seed=11)
    for run in runs:
        run.config["kernel"]["name"] = "baseline"
        run.config["experiment_name"] = "aa"
    return runs


def _nan(steps: slice, *, runs_hit: int | None = None) -> Callable[[], list[SyntheticRun]]:
    def make() -> list[SyntheticRun]:
        runs = make_sweep(seed=13)
        for run in candidates(runs)[:runs_hit]:
            run.loss[steps] = np.nan
        return runs

    return make


def _nan_found_by_a_check() -> list[SyntheticRun]:
    runs = _nan(slice(30, None), runs_hit=1)()
    broken = candidates(runs)[0]
    broken.checks.append({"name": "losses_finite", "verdict": "fail", "evidence": "not finite at step 31"})
    return runs


def _truncated() -> list[SyntheticRun]:
    runs = make_sweep(seed=14)
    for run in candidates(runs):
        run.steps_logged = range(1, 29)
    return runs


def _gap() -> list[SyntheticRun]:
    runs = make_sweep(seed=15)
    candidates(runs)[3].steps_logged = [step for step in range(1, 41) if step != 20]
    return runs


def _undeclared() -> list[SyntheticRun]:
    runs = make_sweep(seed=16)
    for run in candidates(runs):
        run.config["train"]["seq_len"] = 2048
    return runs


def _other_changes() -> list[SyntheticRun]:
    """Both arms at one commit, with other uncommitted changes."""
    runs = make_sweep(seed=22)
    for run in runs:
        changes = "b" * 16 if run in candidates(runs) else "a" * 16
        run.manifest["git"] |= {"dirty": True, "changes": changes}
    return runs


def _noisy(effect: float) -> Callable[[], list[SyntheticRun]]:
    """A sweep of little spread, on a machine whose A/A runs differ by several percent."""

    def make() -> list[SyntheticRun]:
        identical = make_sweep(seed=23, experiment="aa", kernels=("baseline", "baseline"), machine=Machine(run_sd=0.03))
        return [*make_sweep(seed=1, effect=effect), *identical]

    return make


def _rehearsal() -> list[SyntheticRun]:
    runs = make_sweep(seed=17)
    for run in candidates(runs):
        run.config["rehearsal"] = True
    return runs


def _recompiling() -> list[SyntheticRun]:
    runs = make_sweep(seed=18)
    random = np.random.default_rng(18)
    for run in candidates(runs):
        run.step_s *= random.uniform(1.0, 6.0, len(run.step_s))
    return runs


def _unproven() -> list[SyntheticRun]:
    runs = make_sweep(seed=19, effect=0.05)
    for run in candidates(runs):
        run.checks.append({"name": "kernel_executed", "verdict": "fail", "evidence": "fell back in 36 of 36 layers"})
    return runs


def _late_divergence() -> list[SyntheticRun]:
    runs = make_sweep(seed=20)
    for run in candidates(runs):
        run.loss[30:] *= 1 + 0.002 * np.arange(1, 11)
    return runs


def _copies() -> list[SyntheticRun]:
    """One run of each arm, its directory copied seven times."""
    runs = make_sweep(seed=21, pairs=1, effect=0.03)
    copies = []
    for number in range(8):
        for run in runs:
            copies.append(
                SyntheticRun(
                    **{**vars(run), "run_id": f"{run.run_id}-{number}", "config": {**run.config, "block": number}}
                )
            )
    return copies


STEPS = 40
AA_REQUEST = Request(baseline=Selector.parse(["experiment=aa"]), candidate=Selector.parse(["experiment=aa"]))
NOT_FASTER = ("equivalent", "unresolved")
BROKEN = ("different", "unresolved")
CASES = (
    Case(truth="A/A: identical arms", runs=_aa, throughput=NOT_FASTER, request=AA_REQUEST),
    Case(truth="same speed, two kernels", runs=lambda: make_sweep(seed=1), throughput=NOT_FASTER),
    Case(truth="candidate 2 % slower", runs=lambda: make_sweep(seed=12, effect=-0.02), throughput=("slower",)),
    Case(truth="candidate 2 % faster", runs=lambda: make_sweep(seed=12, effect=0.02), throughput=("faster",)),
    Case(
        truth="same speed, identical arms differ by several percent",
        runs=_noisy(0.0),
        throughput=("unresolved",),
        names="A/A runs of this machine differ by up to",
    ),
    Case(truth="2 % faster there", runs=_noisy(0.02), throughput=("unresolved",), names="A/A runs of this machine"),
    Case(truth="30 % faster there", runs=_noisy(0.30), throughput=("faster",)),
    Case(truth="NaN loss at the first step", runs=_nan(slice(0, 1)), throughput=NOT_FASTER, loss=("different",)),
    Case(truth="NaN loss in the middle", runs=_nan(slice(20, 21)), throughput=NOT_FASTER, loss=("different",)),
    Case(
        truth="NaN loss at the last step",
        runs=_nan(slice(STEPS - 1, STEPS)),
        throughput=NOT_FASTER,
        loss=("different",),
    ),
    Case(truth="NaN loss throughout", runs=_nan(slice(None)), throughput=NOT_FASTER, loss=("different",)),
    Case(
        truth="NaN loss in one run of eight", runs=_nan(slice(30, None), runs_hit=1), throughput=NOT_FASTER, loss=BROKEN
    ),
    Case(
        truth="the same, found by the run's own check",
        runs=_nan_found_by_a_check,
        throughput=NOT_FASTER,
        loss=BROKEN,
        names="losses_finite",
    ),
    Case(
        truth="curve cut short at step 28 of 40", runs=_truncated, throughput=NOT_FASTER, loss=BROKEN, names="missing"
    ),
    Case(truth="step 20 missing in one run", runs=_gap, throughput=NOT_FASTER, loss=BROKEN, names="step 20"),
    Case(
        truth="loss drifts away in the last quarter", runs=_late_divergence, throughput=NOT_FASTER, loss=("different",)
    ),
    Case(truth="another sequence length", runs=_undeclared, throughput=(NOT_COMPARABLE,), names="train.seq_len"),
    Case(truth="other uncommitted changes", runs=_other_changes, throughput=(NOT_COMPARABLE,), names="git.changes"),
    Case(truth="rehearsal against full scale", runs=_rehearsal, throughput=(NOT_COMPARABLE,), names="rehearsal"),
    Case(
        truth="one pair only, 5 % faster",
        runs=lambda: make_sweep(seed=4, pairs=1, effect=0.05),
        throughput=("unresolved",),
        loss=("unresolved",),
    ),
    Case(
        truth="two pairs only, 5 % faster",
        runs=lambda: make_sweep(seed=4, pairs=2, effect=0.05),
        throughput=("unresolved",),
        loss=("unresolved",),
    ),
    Case(
        truth="one pair, copied eight times",
        runs=_copies,
        throughput=("unresolved",),
        loss=("unresolved",),
        names="a copy of",
    ),
    Case(
        truth="every step recompiles",
        runs=_recompiling,
        throughput=("unresolved",),
        loss=("unresolved",),
        names="no steady part",
    ),
    Case(
        truth="5 % faster, kernel never executed",
        runs=_unproven,
        throughput=("unresolved",),
        loss=("unresolved",),
        names="kernel_executed",
    ),
)
