"""One run in numbers: rows, events and samples to the contents of ``summary.json``.

Every number that could not be had is null, and ``reasons`` says why under the number's dotted name. A name carries its
scope: ``tps_per_rank``, ``tps_per_chip`` and ``tokens_per_s`` (all ranks); ``steady`` and ``end_to_end`` (compilation
included) are never mixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.flops import CONVENTION, Reported, explain_ratio, flops_per_token, mfu
from harness.peaks import RankPeak, peak_of_rank
from harness.phases import STEADY, Phases, PhasesConfig, find_phases
from harness.shapes import ModelShape
from harness.step_times import StepTimes, step_times

if TYPE_CHECKING:
    from harness.logs import Event, Row

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is known about a run besides its log. Everything is optional, so that any log can be summarised."""

    phases: PhasesConfig = field(default_factory=PhasesConfig)
    ranks: int | None = None
    chips: int | None = None
    tokens_per_step: float | None = None
    """Tokens of one optimizer step over all ranks."""
    seq_len: int | None = None
    shape: ModelShape | None = None
    """The model that was built; None for a foreign log, whose MFU is then kept as reported only."""
    device: str = ""
    """Name of the chip in the table of peaks, or what the machine calls its device; empty: what the log says."""
    lnc: int | None = None
    dtype: str | None = None
    """Type of the matrix products."""
    peak_flops_per_rank: float | None = None
    peak_source: str = ""
    price_per_hour: float | None = None
    """Price of everything the run occupied, per hour, in the user's currency."""
    price_date: str | None = None
    wall_s: float | None = None
    """Seconds from launch to the end of the processes."""
    compile_cache: str | None = None
    """cold or warm, where the cache directory tells."""
    rehearsal: bool = False


def summarize(
    rows: Sequence[Row],
    events: Sequence[Event] = (),
    facts: RunFacts | None = None,
    samples: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The contents of ``summary.json``; the longest segment of the log is the one that is measured."""
    facts = facts or RunFacts()
    reasons: dict[str, str] = {}
    per_rank = _tokens_per_rank_step(facts, events)
    times = step_times(rows, events, tokens_per_step=per_rank)
    phases = find_phases(
        times.seconds, facts.phases, last_step=times.last_step, num_steps=times.num_steps, causes=times.causes
    )
    own = [row for row in rows if row.kind == "train" and row.segment == times.segment]
    steady = _steady(phases, times, facts, own, reasons)
    return {
        "rehearsal": facts.rehearsal,
        "steps": _num_steps(own, times),
        "last_step": max((row.step for row in own), default=None),
        "phase": phases.phase,
        "phase_reason": phases.reason,
        "warmup_steps": phases.warmup_steps,
        "first_steady_step": phases.first_steady_step,
        "steady_steps": phases.steady_steps,
        "recompile_steps": list(phases.recompile_steps),
        "slow_steps": [asdict(slow) for slow in phases.slow_steps],
        "compile_s": _absolute(phases.compile_s, times, "compile_s", phases, reasons),
        "warmup": {
            "rule": phases.rule,
            "parameters": asdict(facts.phases),
            "recompiles": len(phases.recompile_steps),
            "cache": facts.compile_cache,
            "measures": phases.measures,
        },
        "step_times": _step_times(times),
        "steady": steady,
        "flops": _flops(facts, events, own, steady, reasons),
        "end_to_end": _end_to_end(times, facts, reasons),
        "memory": _memory(own, events, samples, reasons),
        "cost": _cost(phases, times, steady, facts, reasons),
        "loss": {"first": _loss(own, first=True), "last": _loss(own)},
        "segments": sorted({row.segment for row in rows}),
        "segment": times.segment,
        "reasons": reasons,
        "notes": list(times.notes),
    }


def _tokens_per_rank_step(facts: RunFacts, events: Iterable[Event]) -> float | None:
    if facts.tokens_per_step and facts.ranks:
        return facts.tokens_per_step / facts.ranks
    return None


def _num_steps(own: Sequence[Row], times: StepTimes) -> int:
    if not own:
        return 0
    first = int(times.last_step[0] - times.num_steps[0] + 1) if len(times) else min(row.step for row in own)
    return max(row.step for row in own) - first + 1


def _absolute(
    value: float | None, times: StepTimes, name: str, phases: Phases, reasons: dict[str, str]
) -> float | None:
    """``value`` if step times are seconds; else None with the reason."""
    if value is None:
        reasons[name] = f"{phases.phase}: {phases.reason}"
        return None
    if times.source == "relative":
        reasons[name] = "tokens per step are not known and the rows carry no times, so steps have no length in seconds"
        return None
    return value


def _loss(own: Sequence[Row], *, first: bool = False) -> float | None:
    losses = [row.loss for row in own if row.loss is not None]
    return losses[0 if first else -1] if losses else None


def _step_times(times: StepTimes) -> dict[str, Any]:
    def typical(values: np.ndarray) -> float | None:
        known = values[np.isfinite(values)]
        return float(np.median(known)) if len(known) else None

    return {
        "source": times.source,
        "logged": len(times),
        "by_tps_median_s": typical(times.from_tps),
        "by_clock_median_s": typical(times.from_clock),
        "tokens_per_step_per_rank": times.tokens_per_step,
        "tokens_source": times.tokens_source,
        "disagreeing_steps": list(times.disagreeing),
    }


def _steady(
    phases: Phases, times: StepTimes, facts: RunFacts, own: Sequence[Row], reasons: dict[str, str]
) -> dict[str, Any]:
    steady: dict[str, Any] = {}
    for key, value in {
        "step_s_median": phases.median,
        "step_s_low": phases.median_low,
        "step_s_high": phases.median_high,
        "step_s_mean": phases.mean,
        "step_s_q1": phases.quartile_low,
        "step_s_q3": phases.quartile_high,
    }.items():
        steady[key] = _absolute(value, times, f"steady.{key}", phases, reasons)
    steady.update(cov=phases.cov, noise=phases.noise, first_step_of_median=phases.settled_from)
    tokens = times.tokens_per_step if times.source != "relative" else 1.0
    per_rank = tokens / phases.median if tokens and phases.median else None
    steady.update(_throughput(per_rank, "steady", phases, times, facts, reasons))
    steady["loss_last"] = _loss(own)
    return steady


def _throughput(
    per_rank: float | None,
    scope: str,
    phases: Phases | None,
    times: StepTimes,
    facts: RunFacts,
    reasons: dict[str, str],
) -> dict[str, float | None]:
    """``tps_per_rank``, ``tps_per_chip`` and ``tokens_per_s`` of one scope."""
    whole = per_rank * facts.ranks if per_rank and facts.ranks else None
    if per_rank is None:
        reasons[f"{scope}.tps_per_rank"] = (
            f"{phases.phase}: {phases.reason}"
            if phases is not None and phases.phase != STEADY
            else "tokens per step are not known"
        )
    if whole is None:
        reasons[f"{scope}.tokens_per_s"] = reasons.get(f"{scope}.tps_per_rank", "the number of ranks is not known")
    per_chip = whole / facts.chips if whole and facts.chips else None
    if per_chip is None:
        reasons[f"{scope}.tps_per_chip"] = reasons.get(f"{scope}.tokens_per_s", "the number of chips is not known")
    return {"tps_per_rank": per_rank, "tps_per_chip": per_chip, "tokens_per_s": whole}


def _flops(
    facts: RunFacts, events: Iterable[Event], own: Sequence[Row], steady: dict[str, Any], reasons: dict[str, str]
) -> dict[str, Any]:
    """The inputs of MFU; ``steady`` receives ``mfu``, ``mfu_reported`` and ``mfu_difference``."""
    peak = peak_of_rank(
        facts.device or _device_of_log(events),
        lnc=facts.lnc,
        dtype=facts.dtype,
        override=facts.peak_flops_per_rank,
        source=facts.peak_source,
    )
    per_token = flops_per_token(facts.shape, facts.seq_len) if facts.shape and facts.seq_len else None
    missing = (
        "the model's shape or the sequence length is not known"
        if per_token is None
        else peak.reason or reasons.get("steady.tps_per_rank", "")
    )
    ours = mfu(steady["tps_per_rank"], per_token.total if per_token else None, peak.flops, missing=missing)
    reported = _reported(own, events, steady)
    steady["mfu"] = ours.percent
    steady["mfu_reported"] = reported.mfu if reported else None
    steady["mfu_difference"] = None
    if ours.percent is None:
        reasons["steady.mfu"] = ours.reason
    if ours.percent and reported and per_token and peak.flops:
        steady["mfu_difference"] = (
            explain_ratio(
                ours.percent,
                reported,
                flops=per_token.total,
                peak=peak.flops,
                shape=facts.shape,
                seq_len=facts.seq_len,
            )
            or None
        )
    return {
        "convention": CONVENTION,
        "per_token": per_token.total if per_token else None,
        "per_token_matmul": per_token.matmul if per_token else None,
        "per_token_attention": per_token.attention if per_token else None,
        "per_token_reported": reported.flops if reported else None,
        "peak_per_rank": peak.flops,
        "peak_source": peak.source or None,
        "peak_reported": reported.peak if reported else None,
        "device": peak.name or None,
        "lnc": facts.lnc,
    } | _peak_reason(peak, reasons)


def _peak_reason(peak: RankPeak, reasons: dict[str, str]) -> dict[str, Any]:
    if peak.flops is None:
        reasons["flops.peak_per_rank"] = peak.reason
    return {}


def _device_of_log(events: Iterable[Event]) -> str:
    for event in events:
        if event.kind == "device_capacity":
            return str(event.data.get("name", ""))
    return ""


def _reported(own: Sequence[Row], events: Iterable[Event], steady: dict[str, Any]) -> Reported | None:
    """The printed MFU over the steady steps, and what the log tells of its inputs."""
    first = steady["first_step_of_median"]
    rows = [row for row in own if first is None or row.step >= first]
    printed = [row.mfu for row in rows if row.mfu is not None]
    if not printed:
        return None
    per_token = [1e12 * row.tflops / row.tps for row in rows if row.tflops and row.tps and row.tflops >= 1]
    peaks = [event.data.get("flops") for event in events if event.kind == "peak_flops"]
    return Reported(
        mfu=float(np.median(printed)),
        flops=float(np.median(per_token)) if per_token else None,
        peak=float(peaks[-1]) if peaks and peaks[-1] else None,
    )


def _end_to_end(times: StepTimes, facts: RunFacts, reasons: dict[str, str]) -> dict[str, Any]:
    """From the start of the first step to the end of the last, compilation and pauses included."""
    train_s = float((times.seconds * times.num_steps).sum()) if len(times) and times.source != "relative" else None
    if train_s is None:
        reasons["end_to_end.train_s"] = "no step has a length in seconds"
    tokens = times.tokens_per_step * float(times.num_steps.sum()) if times.tokens_per_step else None
    per_rank = tokens / train_s if tokens and train_s else None
    return {
        "train_s": train_s,
        "wall_s": facts.wall_s,
        **_throughput(per_rank, "end_to_end", None, times, facts, reasons),
    }


def _memory(
    own: Sequence[Row], events: Iterable[Event], samples: Iterable[Mapping[str, Any]], reasons: dict[str, str]
) -> dict[str, Any]:
    """The allocator's number (from the log) and the monitors' numbers (from samples) are different metrics."""
    gib = [row.memory_gib for row in own if row.memory_gib is not None]
    pct = [row.memory_pct for row in own if row.memory_pct is not None]
    if not gib:
        reasons["memory.peak_gib"] = "no row carries a memory above 0"
    return {"peak_gib": max(gib, default=None), "peak_pct": max(pct, default=None)}


def _cost(
    phases: Phases, times: StepTimes, steady: dict[str, Any], facts: RunFacts, reasons: dict[str, str]
) -> dict[str, Any] | None:
    if facts.price_per_hour is None:
        reasons["cost"] = "platform.price_per_hour is not set; there is no default price"
        return None
    train_s = float((times.seconds * times.num_steps).sum()) if times.source != "relative" else None
    paid_s = facts.wall_s if facts.wall_s is not None else train_s
    per_s = facts.price_per_hour / 3600
    tokens_per_s = steady["tokens_per_s"]
    compile_s = phases.compile_s if times.source != "relative" else None
    return {
        "price_per_hour": facts.price_per_hour,
        "price_date": facts.price_date,
        "paid_s": paid_s,
        "paid_from": "launch to end" if facts.wall_s is not None else "first to last step",
        "run": per_s * paid_s if paid_s is not None else None,
        "per_million_steady_tokens": per_s / tokens_per_s * 1e6 if tokens_per_s else None,
        "compile": per_s * compile_s if compile_s is not None else None,
        "compile_share": compile_s / paid_s if compile_s is not None and paid_s else None,
    }
