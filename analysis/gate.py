"""What may be compared with what. Two steps: runs that prove nothing are left out by name, then the pairs that remain
must be equal in everything but the declared settings. What is not known to be equal is treated as different."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from analysis.pairing import Pair
from analysis.quantities import HEADLINE
from analysis.runs import Run
from harness.manifest import NOT_IDENTITY

# Settings that say where and as which repetition a run took place, where it is shown and how it is watched.
NOT_COMPARED = frozenset(NOT_IDENTITY)
NOT_COMPARED_KEYS = frozenset(("platform.price_date", "path.summary", "hardware.python_executable"))
# May change from pair to pair, but not inside one: replicates may use seeds of their own, the same in both arms.
PER_PAIR = frozenset(("train.seed",))
NEVER_ALLOWED = frozenset(("rehearsal",))
# What follows from a declared setting and from nothing else: another path is another model. The work per step (sequence
# length, batch, ranks, type) does not follow from it, and must be equal for tokens/s to mean anything.
FOLLOWS = {"path": ("shape", "flops.per_token")}
RANKS = "platform.num_ranks"
WORK = (RANKS, "train.global_batch_size", "train.local_batch_size", "train.seq_len")
"""How much one step is, and over how many ranks."""
ABSENT = "not recorded"
MAX_HINTED = 8


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A run that was selected and not used."""

    run: Run
    arm: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One setting in which the arms differ, with both values as text (``a (3 runs), b (1 run)`` where an arm mixes)."""

    key: str
    baseline: str
    candidate: str

    @property
    def mixed(self) -> bool:
        return self.baseline == self.candidate or " run" in self.baseline or " run" in self.candidate

    def __str__(self) -> str:
        return f"{self.key}: baseline {self.baseline}, candidate {self.candidate}"


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Whether the pairs may be compared."""

    undeclared: tuple[Difference, ...]
    declared: tuple[Difference, ...]
    """Differences that the selectors or ``--allow`` name: what is being compared."""

    @property
    def comparable(self) -> bool:
        return not self.undeclared

    @property
    def hint(self) -> str:
        """What to type about the first undeclared difference; empty where there is none."""
        if not self.undeclared:
            return ""
        for difference in self.undeclared:
            if difference.mixed:
                return f"An arm mixes runs: pick one value, e.g. --where {difference.key}=VALUE (or experiment=NAME)"
        key = self.undeclared[0].key
        if key in NEVER_ALLOWED:
            return "A rehearsal is never compared with a full-scale run."
        ranks = next((item for item in self.undeclared if item.key == RANKS), None)
        if ranks is not None and ranks.baseline.isdecimal() and ranks.candidate.isdecimal():
            fewer = min(int(ranks.baseline), int(ranks.candidate))
            return f"Run both arms with the same number of ranks, e.g. {RANKS}={fewer} (a sweep does that by itself)"
        keys = " ".join(item.key for item in self.undeclared[:MAX_HINTED])
        return f"If {'that is' if len(self.undeclared) == 1 else 'those are'} what you compare, say so: --allow {keys}"

    @property
    def other_work(self) -> tuple[Difference, ...]:
        """Declared differences that make a step of one arm another amount of work than a step of the other."""
        return tuple(item for item in self.declared if item.key in WORK)


def leave_out(runs: Iterable[Run], arm: str, *, ignore_checks: Sequence[str] = ()) -> tuple[list[Run], list[LeftOut]]:
    """Split an arm into the runs that count and those that prove nothing, each with its reason."""
    kept: list[Run] = []
    left: list[LeftOut] = []
    seen: dict[tuple, str] = {}
    for run in runs:
        reason = _why_not(run, ignore_checks) or _copy_of(run, seen)
        if reason:
            left.append(LeftOut(run=run, arm=arm, reason=reason))
        else:
            kept.append(run)
    return kept, left


def _why_not(run: Run, ignore_checks: Sequence[str]) -> str:
    if run.state != "finished":
        return f"status is {run.state or 'unknown'}" + (f": {run.reason}" if run.reason else "")
    failed = [f"{name} ({evidence})" if evidence else name for name, evidence in run.failed_checks]
    counted = [
        text for text, (name, _) in zip(failed, run.failed_checks, strict=True) if not _ignored(name, ignore_checks)
    ]
    if counted:
        return f"check failed: {'; '.join(counted)}"
    phase = run.summary.get("phase")
    if phase != "steady":
        return f"no steady part: phase is {phase or 'unknown'}"
    recompiles = run.recompile_steps
    steps, warmup = run.number("steps") or 0, run.warmup_steps
    if recompiles and len(recompiles) >= 0.5 * (steps - warmup):
        return f"no steady part: {len(recompiles)} of {steps - warmup:.0f} steps after warm-up recompiled"
    value = run.number(*HEADLINE.keys)
    if value is None or not 0 < value < float("inf"):
        return f"steady tokens/s is {'missing' if value is None else value}"
    return ""


def _ignored(name: str, ignore_checks: Sequence[str]) -> bool:
    return name in ignore_checks or "all" in ignore_checks


def _copy_of(run: Run, seen: dict[tuple, str]) -> str:
    """A directory copied under another name is no replicate: same start to the millisecond, same figures."""
    mark = (run.started, run.number(*HEADLINE.keys), run.number("end_to_end.tokens_per_s"))
    if not run.started:
        return ""
    first = seen.setdefault(mark, run.run_id)
    return "" if first == run.run_id else f"a copy of {first}: same start time, same figures"


def check_pairs(pairs: Sequence[Pair], declared: Iterable[str]) -> Gate:
    """Compare every setting and circumstance of the paired runs.

    Args:
        declared: keys (or groups: ``kernel`` covers ``kernel.overrides``) in which the arms are meant to differ; what
            follows from them (``FOLLOWS``) is declared with them.
    """
    declared = tuple(declared)
    declared += tuple(key for name in declared for key in FOLLOWS.get(name.removesuffix(".name"), ()))
    undeclared, allowed = [], []
    for key in sorted({key for pair in pairs for run in pair.runs for key in (*run.config, *run.circumstances)}):
        if key.split(".")[0] in NOT_COMPARED or key in NOT_COMPARED_KEYS:
            continue
        difference = _difference(key, pairs)
        if difference is not None:
            is_declared = key not in NEVER_ALLOWED and any(_covers(name, key) for name in declared)
            (allowed if is_declared else undeclared).append(difference)
    undeclared.sort(key=lambda item: item.key not in NEVER_ALLOWED)
    return Gate(undeclared=tuple(undeclared), declared=tuple(allowed))


def _covers(name: str, key: str) -> bool:
    return key == name or key.startswith(f"{name}.")


def _difference(key: str, pairs: Sequence[Pair]) -> Difference | None:
    read = _reader(key)
    baseline = [read(pair.baseline) for pair in pairs]
    candidate = [read(pair.candidate) for pair in pairs]
    if key in PER_PAIR:
        if baseline == candidate:
            return None
    elif len({*baseline, *candidate}) == 1:
        return None
    return Difference(key=key, baseline=_values(baseline), candidate=_values(candidate))


def _reader(key: str) -> Callable[[Run], str]:
    def read(run: Run) -> str:
        if key in run.config:
            return as_text(run.config[key])
        return as_text(run.circumstances[key]) if key in run.circumstances else ABSENT

    return read


def as_text(value: object) -> str:
    """A value as it is compared and shown. Text stays text: versions 2.1 and 2.10 are no numbers."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(as_text(item) for item in value) + "]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    text = str(value)
    return {"True": "true", "False": "false", "None": "null"}.get(text, text)


def _values(texts: Sequence[str]) -> str:
    counts = Counter(texts)
    if len(counts) == 1:
        return texts[0]
    return ", ".join(f"{text} ({count} run{'s' if count > 1 else ''})" for text, count in counts.most_common(4))
