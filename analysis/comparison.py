"""The controlled comparison, from top to bottom: select, leave out, pair, gate, measure, judge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from analysis.curves import DIFFERENT, Curve, CurveVerdict, compare_curves
from analysis.effects import Effect, measure
from analysis.gate import Gate, LeftOut, check_pairs, leave_out
from analysis.noise import Noise, measure_noise
from analysis.paired import UNRESOLVED
from analysis.pairing import Pair, Pairing, make_pairs, split_identical
from analysis.quantities import HEADLINE, QUANTITIES
from analysis.runs import Run
from analysis.selection import Selector

MOST_STEPS = 1_000_000
"""Looked for in a curve: of a longer training the rest may be missing without being noticed."""
ANY = Selector(())
AA = Selector((("experiment", "aa"),))


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked. Equal selectors ask for an A/A comparison: the runs are split into two arms."""

    baseline: Selector
    candidate: Selector
    where: Selector = ANY
    allow: tuple[str, ...] = ()
    """Further settings in which the arms may differ."""
    margin: float = 0.01
    """Relative difference that does not matter, for every quantity."""
    loss_margin: float = 0.005
    grad_norm_margin: float = 0.05
    ignore_checks: tuple[str, ...] = ()
    aa: Selector = AA
    """Runs of identical arms, for the noise floor."""

    @property
    def identical(self) -> bool:
        return self.baseline == self.candidate

    @property
    def declared(self) -> tuple[str, ...]:
        return (*self.baseline.keys, *self.candidate.keys, *self.allow)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that is known about the two arms."""

    request: Request
    gate: Gate
    pairing: Pairing
    left_out: tuple[LeftOut, ...]
    effects: tuple[Effect, ...] = ()
    loss: CurveVerdict | None = None
    grad_norm: CurveVerdict | None = None
    noise: Noise = field(default_factory=Noise)
    """What identical arms show on this machine."""

    @property
    def comparable(self) -> bool:
        return self.gate.comparable

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return self.pairing.pairs

    @property
    def runs(self) -> list[Run]:
        return [run for pair in self.pairs for run in pair.runs]

    @property
    def rehearsal(self) -> bool:
        return any(run.rehearsal for run in self.runs) or any(item.run.rehearsal for item in self.left_out)

    def effect(self, name: str) -> Effect | None:
        return next((effect for effect in self.effects if effect.quantity.name == name), None)

    @property
    def verdict(self) -> str:
        """The headline: steady throughput."""
        if not self.comparable:
            return "not comparable"
        effect = self.effect(HEADLINE.name)
        return effect.verdict if effect else UNRESOLVED


def compare(runs: Sequence[Run], request: Request) -> Comparison:
    """Compare two arms out of ``runs``.

    Raises:
        ValueError: a selector that no run matches, or runs that belong to both arms.
    """
    chosen = request.where.choose(runs)
    baseline, candidate = _arms(chosen, request)
    baseline, left = leave_out(baseline, "baseline", ignore_checks=request.ignore_checks)
    candidate, left_too = leave_out(candidate, "candidate", ignore_checks=request.ignore_checks)
    if request.identical:
        baseline, candidate = split_identical(baseline)
    pairing = make_pairs(baseline, candidate)
    in_baseline = {id(run) for run in baseline}
    left_out = [*left, *left_too] + [
        LeftOut(run=run, arm="baseline" if id(run) in in_baseline else "candidate", reason="no partner in its block")
        for run in pairing.unpaired
    ]
    gate = check_pairs(pairing.pairs, request.declared)
    result = Comparison(request=request, gate=gate, pairing=pairing, left_out=tuple(left_out))
    return _judge(result, runs) if gate.comparable else result


def _arms(runs: Sequence[Run], request: Request) -> tuple[list[Run], list[Run]]:
    if request.identical:
        return request.baseline.choose(runs), []
    if not any(key == "experiment" for key in (*request.baseline.keys, *request.candidate.keys, *request.where.keys)):
        runs = [run for run in runs if not request.aa.matches(run)] or runs
    baseline, candidate = request.baseline.choose(runs), request.candidate.choose(runs)
    both = {id(run) for run in baseline} & {id(run) for run in candidate}
    if both:
        raise ValueError(
            f"{len(both)} runs match both arms ({request.baseline} and {request.candidate}): name a setting that tells "
            "them apart, e.g. --baseline kernel=baseline --candidate kernel=nki_rope"
        )
    return baseline, candidate


def _judge(comparison: Comparison, runs: Sequence[Run]) -> Comparison:
    request, pairs = comparison.request, comparison.pairs
    noise = _noise(comparison, runs)
    effects = [
        measure(quantity, pairs, margin=request.margin, floor=noise.floors.get(quantity.name, 0.0))
        for quantity in QUANTITIES
    ]
    recorded = [
        effect for effect in effects if effect.quantity.name == HEADLINE.name or effect.values or _is_recorded(effect)
    ]
    loss = _curves(pairs, "loss", "loss", request.loss_margin)
    return replace(
        comparison,
        effects=tuple(recorded),
        loss=_not_without_the_broken(loss, comparison),
        grad_norm=_curves(pairs, "grad_norm", "gradient norm", request.grad_norm_margin),
        noise=noise,
    )


def _is_recorded(effect: Effect) -> bool:
    return any(not reason.endswith("not recorded") for reason in effect.missing)


def _noise(comparison: Comparison, runs: Iterable[Run]) -> Noise:
    """An A/A comparison has no floor but itself."""
    if comparison.request.identical or not comparison.pairs:
        return Noise()
    used = {id(run) for run in comparison.runs}
    identical = [run for run in runs if comparison.request.aa.matches(run) and id(run) not in used]
    return measure_noise(identical, comparison.pairs, comparison.request.margin)


def _curves(pairs: Sequence[Pair], series: str, what: str, margin: float) -> CurveVerdict:
    def arm(runs: Iterable[Run]) -> list[Curve]:
        return [Curve.of(run.series[series], run.run_id) for run in runs]

    return compare_curves(
        arm(pair.baseline for pair in pairs),
        arm(pair.candidate for pair in pairs),
        margin=margin,
        expected=expected_steps(pairs[0].baseline) if pairs else (),
        what=what,
    )


def expected_steps(run: Run) -> list[int]:
    """The steps that torchtitan logs under the run's settings: the first and every ``log_freq``-th; empty: unknown."""
    try:
        steps, every = int(run.config["train.steps"]), int(run.config.get("train.log_freq") or 1)
    except (KeyError, TypeError, ValueError, OverflowError):
        return []
    if every < 1:
        return []
    steps = min(steps, MOST_STEPS)
    return [*([1] if every > 1 and steps else []), *range(every, steps + 1, every)]


def _not_without_the_broken(loss: CurveVerdict, comparison: Comparison) -> CurveVerdict:
    """A run whose loss blew up must not make its arm look sound by being left out."""
    if loss.verdict == DIFFERENT:
        return loss
    sweeps = {(run.sweep or run.experiment) for run in comparison.runs}
    broken = [
        item
        for item in comparison.left_out
        if (not sweeps or (item.run.sweep or item.run.experiment) in sweeps) and item.run.has_nonfinite_loss
    ]
    if not broken:
        return loss
    first = broken[0]
    one_sided = all(item.arm == first.arm for item in broken)
    reason = f"loss of the {first.arm} is not finite in {first.run.run_id}, which was left out"
    return replace(
        loss,
        verdict=DIFFERENT if one_sided else UNRESOLVED,
        reason=reason if one_sided else f"{reason}; the other arm has such runs as well",
    )
