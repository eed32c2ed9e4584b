"""The result in plain words. Everything a person reads about a comparison is said here, once: terminal, Markdown, HTML
and MLflow's note show the same sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.comparison import Comparison
from analysis.curves import DIFFERENT, CurveVerdict
from analysis.gate import as_text
from analysis.numbers import between, change, percent, plural, share, signed
from analysis.paired import EQUIVALENT, MIN_PAIRS, UNRESOLVED
from analysis.quantities import HEADLINE
from analysis.runs import Run
from analysis.selection import Selector

SIGNIFICANT = 0.05
MUST_BE_KNOWN = (
    "rehearsal", "platform.num_ranks", "train.seq_len", "train.global_batch_size", "train.dtype", "train.steps",
    "train.seed", "data.name", "git.commit", "versions.torch", "hardware.hostname",
)  # fmt: skip
"""What a comparison says least without."""
REHEARSAL = "Rehearsal on CPU at narrow widths: this says nothing about Trainium."


def arm_names(comparison: Comparison) -> tuple[str, str]:
    """Short names of the two arms: what their selectors do not share."""
    request = comparison.request
    if request.identical:
        return "A", "B"
    return _name(request.baseline, request.candidate), _name(request.candidate, request.baseline)


def _name(own: Selector, other: Selector) -> str:
    different = [condition for condition in own.conditions if condition not in other.conditions]
    if len(different) == 1:
        return different[0][1]
    return " ".join(f"{key}={value}" for key, value in different) or str(own)


def title(comparison: Comparison) -> str:
    """What is compared, in a few words."""
    baseline, candidate = arm_names(comparison)
    identical = comparison.request.identical
    return f"A/A: {comparison.request.baseline}" if identical else f"{candidate} against {baseline}"


def headline(comparison: Comparison) -> str:
    """The verdict, and for a rehearsal what it does not say."""
    return f"{verdict(comparison)} {REHEARSAL}" if comparison.rehearsal else verdict(comparison)


def verdict(comparison: Comparison) -> str:
    """Speed and training, a sentence each."""
    if not comparison.comparable:
        return _not_comparable(comparison)
    return " ".join(sentence for sentence in (_speed(comparison), _training(comparison)) if sentence)


def _not_comparable(comparison: Comparison) -> str:
    differences = comparison.gate.undeclared
    first = differences[0]
    more = f" and {len(differences) - 1} more" if len(differences) > 1 else ""
    values = f"baseline {first.baseline}, candidate {first.candidate}"
    return f"Not comparable: the arms differ in {first.key} ({values}){more}."


def _speed(comparison: Comparison) -> str:
    effect = comparison.effect(HEADLINE.name)
    baseline, candidate = arm_names(comparison)
    if effect is None or not effect.values:
        why = _left_out(comparison) or (f"; {effect.missing[0]}" if effect and effect.missing else "")
        return f"Unresolved: no pair of usable runs of {baseline} and {candidate}{why}."
    pairs = plural(effect.pairs, "pair")
    measured = f"{change(effect.ratio)} steady tokens/s"
    if math.isfinite(effect.low):
        measured += f", 95 % interval {between(effect)}, {pairs} of runs"
    if effect.verdict == EQUIVALENT:
        return f"{candidate} and {baseline} are equally fast within {percent(effect.asked)} ({measured})."
    if effect.verdict == UNRESOLVED:
        question = f"Unresolved at {percent(effect.asked)} whether {candidate} is faster than {baseline}"
        return f"{question} ({measured}): {effect.reason}."
    return f"{candidate} is {effect.verdict} than {baseline} by {percent(abs(effect.ratio - 1))} ({measured})."


def _left_out(comparison: Comparison) -> str:
    count = len(comparison.left_out)
    if not count:
        return ""
    return f"; {plural(count, 'run')} left out, the first because {comparison.left_out[0].reason}"


def _training(comparison: Comparison) -> str:
    loss = comparison.loss
    if loss is None:
        return ""
    if loss.verdict == EQUIVALENT:
        detail = (
            "every logged value is the same" if loss.bitwise else f"largest difference {share(loss.max_difference)}"
        )
        return f"It is the same training: {loss.reason} ({detail})."
    if loss.verdict == DIFFERENT:
        return f"It is not the same training: {loss.reason}."
    return f"Unresolved whether it is the same training: {loss.reason}."


def design(comparison: Comparison) -> str:
    """What this design can see of the headline quantity."""
    effect = comparison.effect(HEADLINE.name)
    if effect is None:
        return ""
    if not math.isfinite(effect.power.detectable):
        return f"{plural(effect.pairs, 'pair')}: the spread between runs is not known, so nothing can be said of power."
    needed = effect.power.pairs_needed
    more = f"{needed} pairs" if needed else "more than 10,000 pairs"
    return (
        f"{plural(effect.pairs, 'pair')} with a spread of {percent(effect.pair_sd)} between pairs find a difference of "
        f"{percent(effect.power.detectable)} with 80 % chance; {more} would find {percent(effect.power.effect)}."
    )


def notes(comparison: Comparison) -> list[str]:
    """What a reader must know to trust the numbers, most important first."""
    if not comparison.comparable:
        return [comparison.gate.hint] if comparison.gate.hint else []
    found = [*_order_notes(comparison), *_noise_notes(comparison), *_provenance_notes(comparison)]
    return [note for note in found if note]


def _order_notes(comparison: Comparison) -> list[str]:
    effect = comparison.effect(HEADLINE.name)
    pairing = comparison.pairing
    if effect is None or not effect.values:
        return []
    found = []
    if pairing.basis != "block":
        found.append(f"The runs record no blocks; they were paired by {pairing.basis}.")
    if not pairing.ordered:
        return [*found, "The order of the runs is not known, so a drift of the machine cannot be told from an effect."]
    if effect.pairs < MIN_PAIRS:
        return found
    if abs(effect.drift_removed) >= 5e-5:
        found.append(
            f"The arms ran at different times on average: a linear drift worth {signed(effect.drift_removed)} was "
            "subtracted and its uncertainty added. A drift of another shape would remain."
        )
    if effect.drift.p < SIGNIFICANT:
        found.append(
            f"The machine drifted by {signed(effect.drift.effect)} over the sweep (p = {effect.drift.p:.2g}); pairs "
            "cancel it."
        )
    else:
        found.append(f"No drift of the machine over the sweep is shown ({_trend(effect.drift)}).")
    if math.isnan(effect.order.p):
        found.append("An effect of the order within a pair cannot be tested: not enough pairs in both orders.")
    elif effect.order.p < SIGNIFICANT:
        found.append(
            f"Running second in a pair changes throughput by {signed(effect.order.effect)} (p = {effect.order.p:.2g}): "
            "look at what the first run leaves behind (caches, heat)."
        )
    else:
        found.append(f"No effect of running second in a pair is shown ({_trend(effect.order)}).")
    return found


def _trend(trend) -> str:
    return "not testable" if math.isnan(trend.p) else f"{signed(trend.effect)}, p = {trend.p:.2g}"


def _noise_notes(comparison: Comparison) -> list[str]:
    effect = comparison.effect(HEADLINE.name)
    found = []
    if effect and effect.floor:
        floor = f"A/A noise floor from {plural(comparison.noise.pairs, 'pair')} of identical arms: "
        what = f"above the margin of {percent(effect.asked)}, so equality cannot be shown here"
        found.append(f"{floor}{percent(effect.floor)}, {what if effect.drowned else 'no smaller effect is called'}.")
    elif comparison.noise.missing:
        found.append(f"No A/A noise floor: {comparison.noise.missing}.")
    for other in comparison.effects:
        if other.outlying:
            found.append(f"{other.quantity.label}: far from the other pairs, not dropped: {', '.join(other.outlying)}.")
        if other.missing and other.values:
            found.append(f"{other.quantity.label} without {'; '.join(other.missing[:3])}{_more(other.missing)}.")
    return found


def _provenance_notes(comparison: Comparison) -> list[str]:
    runs = comparison.runs
    found = []
    if comparison.gate.other_work:
        what = "; ".join(str(item) for item in comparison.gate.other_work)
        found.append(
            f"A step is not the same work in both arms ({what}): tokens/s, step time and loss compare that too."
        )
    if any(item.key == "path.name" for item in comparison.gate.declared):
        found.append("The paths train different models: this shows what each costs, not which code is faster.")
    seeds = {as_text(run.setting("train.seed")) for run in runs} - {"null"}
    if len(seeds) == 1 and comparison.loss and comparison.loss.verdict == EQUIVALENT:
        found.append(f"All runs share seed {seeds.pop()}: the loss verdict says nothing about other seeds.")
    unproven = sorted({str(run.setting("kernel")) for run in runs if _kernel_unproven(run)})
    if unproven:
        found.append(f"No check in these runs shows that the kernel was executed: {', '.join(unproven)}.")
    if any(str(run.circumstances.get("git.dirty")).lower() == "true" for run in runs):
        found.append(_uncommitted(runs))
    if missing := [key for key in MUST_BE_KNOWN if any(run.setting(key) is None for run in runs)]:
        found.append(f"Not recorded in some runs, so not proven to be equal: {', '.join(missing)}.")
    if without := [run for run in runs if not run.passed_checks]:
        found.append(f"No check was made in {plural(len(without), 'run')}, e.g. {without[0].run_id}.")
    if not all(run.complete_config for run in runs):
        found.append("Some runs were read from MLflow's params alone: settings that are no params were not compared.")
    if comparison.request.ignore_checks:
        found.append(f"Failed checks were ignored on request: {', '.join(comparison.request.ignore_checks)}.")
    return found


def _uncommitted(runs: Sequence[Run]) -> str:
    if all("git.changes" in run.circumstances for run in runs):
        hashes = sorted({str(run.circumstances["git.changes"]) for run in runs} - {"none"})
        return f"The code had uncommitted changes, told apart by their hash: {', '.join(hashes)}."
    return "The code had uncommitted changes, so equal commits do not prove equal code."


def _kernel_unproven(run: Run) -> bool:
    kernel = run.setting("kernel")
    return kernel not in (None, "baseline") and "kernel_executed" not in run.passed_checks


def _more(items: tuple[str, ...]) -> str:
    return f" and {len(items) - 3} more" if len(items) > 3 else ""


METHOD = (
    "The unit is the run, not the step: steps of one run share its offset, and tests over steps call noise "
    "significant.",
    "Each run counts with one number, the median of its steady steps; runs are paired by block, and the 95 % interval "
    "is Student's t on the logarithm of the pairs' ratios.",
    "Equivalent: the whole interval lies inside the margin. Faster or slower: the interval excludes no change. "
    "Anything else, and any comparison of fewer than 3 pairs, is unresolved.",
    "Noise floor: the largest change that A/A runs, which are identical, cannot exclude on this machine. No smaller "
    "change is called, and where it is above the margin nothing is called equivalent.",
    "Loss: the paired log-ratio of both curves must lie inside the margin in each of up to four parts of the curve, "
    "with its whole interval over the pairs, and no single step may be off by ten margins. A NaN, a missing step or "
    "another length can never be equivalent.",
    "Arms may differ in the declared settings only. Runs that failed, failed a check or never became steady are left "
    "out by name.",
)


def curve_line(curve: CurveVerdict, label: str) -> str:
    """One line about a curve for tables: differences and where they begin."""
    detail = curve_detail(curve)
    same = ", the same in every logged value" if curve.bitwise else ""
    return f"{label}: {curve.verdict}{same}; {detail}" if detail else f"{label}: {curve.verdict} ({curve.reason})"


def curve_detail(curve: CurveVerdict) -> str:
    """Differences of the curves and where they begin; empty where no step is shared."""
    if not curve.steps:
        return ""
    first = ", ".join(
        f"{tolerance:g} at {'no step' if step is None else f'step {step}'}"
        for tolerance, step in curve.first_divergence.items()
    )
    return (
        f"largest difference {share(curve.max_difference)}"
        f"{f' (step {curve.max_step})' if curve.max_step is not None else ''}, mean {share(curve.mean_difference)}; "
        f"first differs by more than {first}"
    )
