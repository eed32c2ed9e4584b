"""One run in numbers: rows, events and samples to the contents of ``summary.json``.

Every number that could not be had is null, and ``reasons`` says why under the number's dotted name. A name carries its
scope: ``tps_per_rank``, ``tps_per_chip``, ``tps_per_node`` and ``tokens_per_s`` (all ranks); ``steady`` and
``end_to_end`` (compilation included) are never mixed. Durations are seconds, ``mfu`` and ``mfu_reported``
percent, memory GiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.flops import CONVENTION, Reported, explain_ratio, flops_per_token, mfu
from harness.measured import host_summary, memory_summary
from harness.peaks import peak_of_rank
from harness.phases import STEADY, Phases, find_phases
from harness.run_facts import RunFacts, complete
from harness.step_times import StepTimes, longest_segment, step_times

if TYPE_CHECKING:
    from harness.logs import Event, Row

__all__ = ["RunFacts", "summarize"]

MIN_PRINTED = 1.0
"""``tflops`` and ``mfu`` are printed with two decimals; below this they are too coarse to reckon with."""


def summarize(
    rows: Sequence[Row],
    events: Sequence[Event] = (),
    facts: RunFacts | None = None,
    samples: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The contents of ``summary.json``. The longest segment of the log is measured; ``segments`` lists all of them."""
    samples, segment = list(samples), longest_segment(rows)
    own_events = [event for event in events if event.segment in (segment, 0)]
    facts = complete(facts or RunFacts(), own_events)
    return _Summary(rows, own_events, facts, samples, segment).contents()


class _Summary:
    """One summary in the making; each method is one part of it and leaves its reasons."""

    def __init__(
        self,
        rows: Sequence[Row],
        events: Sequence[Event],
        facts: RunFacts,
        samples: Sequence[Mapping[str, Any]],
        segment: int,
    ) -> None:
        self.rows, self.events, self.facts, self.samples, self.segment = rows, events, facts, samples, segment
        self.own = [row for row in rows if row.kind == "train" and row.segment == segment]
        self.times, self.phases = self._split(segment)
        self.reasons: dict[str, str] = {}

    def _split(self, segment: int) -> tuple[StepTimes, Phases]:
        times = step_times(self.rows, self.events, tokens_per_step=self.facts.tokens_per_rank_step, segment=segment)
        phases = find_phases(
            times.seconds, self.facts.phases, last_step=times.last_step, num_steps=times.num_steps, causes=times.causes
        )
        return times, phases

    def contents(self) -> dict[str, Any]:
        steady = self._steady()
        phases = self.phases
        return {
            "rehearsal": self.facts.rehearsal,
            "steps": self._num_steps(),
            "last_step": max((row.step for row in self.own), default=None),
            "phase": phases.phase,
            "phase_reason": phases.reason,
            "warmup_steps": self._known("warmup_steps", phases.warmup_steps, self._no_phase()),
            "first_steady_step": phases.first_steady_step,
            "steady_steps": phases.steady_steps,
            "recompile_steps": list(phases.recompile_steps),
            "slow_steps": [asdict(slow) for slow in phases.slow_steps],
            "compile_s": self._seconds("compile_s", phases.compile_s),
            "warmup": {
                "rule": phases.rule,
                "parameters": asdict(self.facts.phases),
                "slow_first_steps": phases.slow_first_steps,
                "slow_first_s": self._slow_first_s(),
                "recompiles": len(phases.recompile_steps),
                "cache": self.facts.compile_cache,
                "measures": phases.measures,
            },
            "step_times": self._step_times(),
            "flops": self._flops(steady),
            "steady": steady,
            "end_to_end": self._end_to_end(),
            "memory": self._memory(),
            "host": self._known("host", host_summary(self.samples), "no samples of the host were taken"),
            "cost": self._cost(steady["tokens_per_s"]),
            "loss": {"first": self._loss(0), "last": self._loss(-1)},
            "segment": self.segment,
            "segments": [self._segment(segment) for segment in sorted({row.segment for row in self.rows})],
            "reasons": self.reasons,
            "notes": list(self.times.notes),
        }

    # -- reasons ---------------------------------------------------------------------------------------------------

    def _known(self, name: str, value: Any, reason: str) -> Any:
        """``value``; if there is none, ``reason`` is kept under ``name``."""
        if value is None:
            self.reasons[name] = reason
        return value

    def _seconds(self, name: str, value: float | None) -> float | None:
        """``value`` if step times are seconds, else None with the reason."""
        if value is not None and self.times.source == "relative":
            return self._known(name, None, "neither the tokens of a step nor times are known: steps have no length")
        return self._known(name, value, self._no_phase())

    def _no_phase(self) -> str:
        return f"{self.phases.phase}: {self.phases.reason}"

    # -- parts -----------------------------------------------------------------------------------------------------

    def _num_steps(self) -> int:
        if not len(self.times):
            return len({row.step for row in self.own})
        return int(self.own[-1].step - (self.times.last_step[0] - self.times.num_steps[0]))

    def _slow_first_s(self) -> float | None:
        """Seconds of the slow first steps in all: known even where no steady state follows."""
        steps, times = self.phases.slow_first_steps, self.times
        if steps is None or times.source == "relative":
            return None
        first = times.last_step < times.last_step[0] - times.num_steps[0] + 1 + steps
        return float((times.seconds * times.num_steps)[first].sum())

    def _loss(self, index: int) -> float | None:
        losses = [row.loss for row in self.own if row.loss is not None]
        return losses[index] if losses else self._known("loss", None, "no row of this rank shows a loss")

    def _step_times(self) -> dict[str, Any]:
        def typical(values: np.ndarray) -> float | None:
            known = values[np.isfinite(values)]
            return float(np.median(known)) if len(known) else None

        times = self.times
        return {
            "source": times.source,
            "logged": len(times),
            "by_tps_median_s": typical(times.from_tps),
            "by_clock_median_s": typical(times.from_clock),
            "tokens_per_step_per_rank": times.tokens_per_step,
            "tokens_source": times.tokens_source,
            "disagreeing_steps": list(times.disagreeing),
        }

    def _steady(self) -> dict[str, Any]:
        phases, steady = self.phases, {}
        for key, value in {
            "step_s_median": phases.median,
            "step_s_low": phases.median_low,
            "step_s_high": phases.median_high,
            "step_s_mean": phases.mean,
            "step_s_q1": phases.quartile_low,
            "step_s_q3": phases.quartile_high,
        }.items():
            steady[key] = self._seconds(f"steady.{key}", value)
        steady.update(cov=phases.cov, noise=phases.noise, first_step_of_median=phases.settled_from)
        tokens = self.times.tokens_per_step if self.times.source != "relative" else 1.0
        per_rank = tokens / phases.median if tokens and phases.median else None
        reason = self._no_phase() if phases.phase != STEADY else "the tokens of a step are not known"
        return steady | self._throughput("steady", per_rank, reason) | {"loss_last": self._loss(-1)}

    def _throughput(self, scope: str, per_rank: float | None, reason: str) -> dict[str, float | None]:
        """``tps_per_rank``, ``tps_per_chip``, ``tps_per_node`` and ``tokens_per_s``, of the whole job, of one scope."""
        ranks, chips = self.facts.ranks, self.facts.chips
        whole = per_rank * ranks if per_rank and ranks else None
        per_chip = whole / chips if whole and chips else None
        nodes = self.facts.nodes
        per_node = whole / nodes if whole and nodes else None
        no_whole = reason if per_rank is None else "the number of ranks is not known"
        no_chip = no_whole if whole is None else "the number of chips is not known"
        no_node = no_whole if whole is None else "the number of nodes is not known"
        return {
            "tps_per_rank": self._known(f"{scope}.tps_per_rank", per_rank, reason),
            "tps_per_chip": self._known(f"{scope}.tps_per_chip", per_chip, no_chip),
            "tps_per_node": self._known(f"{scope}.tps_per_node", per_node, no_node),
            "tokens_per_s": self._known(f"{scope}.tokens_per_s", whole, no_whole),
        }

    def _flops(self, steady: dict[str, Any]) -> dict[str, Any]:
        """The inputs of MFU; ``steady`` receives ``mfu``, ``mfu_reported`` and, where they differ, why."""
        facts = self.facts
        peak = peak_of_rank(
            facts.device,
            lnc=facts.lnc,
            dtype=facts.dtype,
            override=facts.peak_flops_per_rank,
            source=facts.peak_source,
        )
        per_token = flops_per_token(facts.shape, facts.seq_len) if facts.shape and facts.seq_len else None
        missing = "the model's shape or the sequence length is not known" if per_token is None else peak.reason
        missing = missing or self.reasons.get("steady.tps_per_rank", "")
        ours = mfu(steady["tps_per_rank"], per_token.total if per_token else None, peak.flops, missing=missing)
        reported = self._reported(steady["first_step_of_median"])
        steady["mfu"] = self._known("steady.mfu", ours.percent, ours.reason)
        if facts.rehearsal:
            self.reasons["steady.mfu_reported"] = "a rehearsal on CPU has no peak that a printed MFU could refer to"
            reported = None
        steady["mfu_reported"] = reported.mfu if reported else None
        steady["mfu_difference"] = None
        if ours.percent and reported and per_token and peak.flops:
            steady["mfu_difference"] = explain_ratio(
                ours.percent,
                reported,
                flops=per_token.total,
                peak=peak.flops,
                shape=facts.shape,
                seq_len=facts.seq_len,
            )
        return {
            "convention": CONVENTION,
            "per_token": self._known("flops.per_token", per_token.total if per_token else None, missing),
            "per_token_matmul": per_token.matmul if per_token else None,
            "per_token_attention": per_token.attention if per_token else None,
            "per_token_reported": reported.flops if reported else None,
            "peak_per_rank": self._known("flops.peak_per_rank", peak.flops, peak.reason),
            "peak_source": peak.source or None,
            "peak_reported": reported.peak if reported else None,
            "device": peak.name or None,
            "lnc": facts.lnc,
        }

    def _reported(self, first_step: int | None) -> Reported | None:
        """The MFU printed for the undisturbed steady steps (all steps without such), and what the log tells of it."""
        slow = {slow.step for slow in self.phases.slow_steps}
        rows = [row for row in self.own if (first_step is None or row.step >= first_step) and row.step not in slow]
        printed = [row.mfu for row in rows if row.mfu is not None]
        if not printed:
            return None
        exact = [row for row in rows if row.tflops and row.tps and row.tflops >= MIN_PRINTED]
        peaks = [1e14 * row.tflops / row.mfu for row in exact if row.tflops and row.mfu and row.mfu >= MIN_PRINTED]
        said = [event.data["flops"] for event in self.events if event.kind == "peak_flops" and event.data.get("flops")]
        per_token = [1e12 * row.tflops / row.tps for row in exact if row.tflops and row.tps]
        return Reported(
            mfu=float(np.median(printed)),
            flops=float(np.median(per_token)) if per_token else None,
            peak=float(said[-1]) if said else float(np.median(peaks)) if peaks else None,
        )

    def _train_s(self) -> float | None:
        return self.times.total if len(self.times) and self.times.source != "relative" else None

    def _end_to_end(self) -> dict[str, Any]:
        """From the start of the first step to the end of the last, compilation and pauses included."""
        times, train_s = self.times, self._train_s()
        per_rank = times.tokens_per_step * float(times.num_steps.sum()) if times.tokens_per_step else None
        per_rank = per_rank / train_s if per_rank and train_s else None
        reason = "the tokens of a step are not known" if train_s else "no step has a length in seconds"
        return {
            "train_s": self._known("end_to_end.train_s", train_s, "no step has a length in seconds"),
            "wall_s": self._known("end_to_end.wall_s", self.facts.wall_s, "the log does not tell when it was launched"),
            **self._throughput("end_to_end", per_rank, reason),
        }

    def _memory(self) -> dict[str, Any]:
        memory = memory_summary(self.own, self.events, self.samples)
        self._known("memory.peak_gib", memory["peak_gib"], "no row carries a memory above 0")
        self._known("memory.device", memory["device"], "no monitor of the device gave a sample")
        self._known("memory.ranks_rss_gib", memory["ranks_rss_gib"], "no samples of the host were taken")
        return memory

    def _cost(self, tokens_per_s: float | None) -> dict[str, Any] | None:
        facts, train_s = self.facts, self._train_s()
        if facts.price_per_hour is None:
            return self._known("cost", None, "platform.price_per_hour is not set; there is no default price")
        paid_s = facts.wall_s if facts.wall_s is not None else train_s
        per_s, compile_s = facts.price_per_hour / 3600, self.phases.compile_s if train_s else None
        steady_million = per_s / tokens_per_s * 1e6 if tokens_per_s else None
        no_steady = self.reasons.get("steady.tokens_per_s", "")
        return {
            "price_per_hour": facts.price_per_hour,
            "price_date": facts.price_date,
            "paid_s": paid_s,
            "paid_from": "launch to end" if facts.wall_s is not None else "first to last step",
            "run": self._known("cost.run", per_s * paid_s if paid_s else None, "no step has a length in seconds"),
            "per_million_steady_tokens": self._known("cost.per_million_steady_tokens", steady_million, no_steady),
            "compile": per_s * compile_s if compile_s is not None else None,
            "compile_share": compile_s / paid_s if compile_s is not None and paid_s else None,
        }

    def _segment(self, segment: int) -> dict[str, Any]:
        times, phases = (self.times, self.phases) if segment == self.segment else self._split(segment)
        steps = [row.step for row in self.rows if row.kind == "train" and row.segment == segment]
        return {
            "segment": segment,
            "first_step": min(steps, default=None),
            "last_step": max(steps, default=None),
            "phase": phases.phase,
            "warmup_steps": phases.warmup_steps,
            "step_s_median": phases.median if times.source != "relative" else None,
        }
