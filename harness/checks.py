"""What a run must prove. Each check has a verdict and the evidence for it; nothing passes for want of evidence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.kernel_gate import GateResult
from harness.logs import Event, Row
from harness.plan import Plan
from harness.titan.spec import TitanSpec
from harness.watch import End

PASS, FAIL, SKIPPED = "pass", "fail", "skipped"


@dataclass(frozen=True)
class Check:
    """``value`` is the number behind the verdict, where there is one; MLflow shows it as ``check/<name>``."""

    name: str
    verdict: str
    evidence: str
    value: float | None = None
    blocking: bool = True
    """Whether a failure is one of the run: exit code 1. Otherwise it is only reported."""


def judge(name: str, passed: bool, evidence: str, value: float | None = None, *, blocking: bool = True) -> Check:
    return Check(name, PASS if passed else FAIL, evidence, value, blocking)


IN_TRAINING = ("model", "rope_buffers", "tied_embedding")
"""Checks that the training process itself makes and logs as ``[pilot] check NAME pass|fail key=value ...``."""


def run_checks(plan: Plan, spec: TitanSpec, rows: Sequence[Row], events: Sequence[Event], end: End) -> list[Check]:
    """All checks of one run, in the order in which a person would ask."""
    train = [row for row in rows if row.kind == "train"]
    checks = [
        completed(end),
        initial_weights(plan, events),
        steps_logged(plan, train),
        losses_finite(train),
        model_parameters(plan, events),
    ]
    reports = reported(events)
    checks += [from_training(name, reports.get(name)) for name in IN_TRAINING]
    checks.append(model_layers(plan, reports.get("model")))
    if plan.swaps.kernels:
        checks += [kernel_requested(plan), kernel_applied(plan, events), kernel_executed(plan, spec, events)]
    return checks


def initial_weights(plan: Plan, events: Iterable[Event]) -> Check:
    """What was loaded before the first step, by the log, is what was asked for: nothing else wins silently."""
    initial = plan.initial
    loads = [event.data.get("path") for event in events if event.kind == "checkpoint_load"]
    found = ", ".join(dict.fromkeys(str(path).rstrip(".") for path in loads if path))
    said = f"{initial.describe()}; the log names {found or 'no load'}"
    if loads and not found:
        return Check("initial_weights", SKIPPED, f"{initial.describe()}; the log does not name what it loads")
    if initial.resumed_step is not None:
        return judge("initial_weights", found == f"{initial.resumed_from}/step-{initial.resumed_step}", said)
    return judge("initial_weights", found == (initial.place or ""), said)


def kernel_requested(plan: Plan) -> Check:
    """What was asked for; never a failure, but an entry of its own: asked for, applied and executed are three facts."""
    kernels, layers = ", ".join(plan.swaps.kernels), plan.swaps.layers
    evidence = f"{kernels} in {len(layers)} of {plan.shape.num_layers} layers, backend {plan.config.kernel.backend}"
    return Check("kernel_requested", PASS, evidence, float(len(layers)))


def kernel_applied(plan: Plan, events: Iterable[Event]) -> Check:
    """One swap per selected layer and kernel, exactly, in the log of one rank."""
    expected = plan.swaps.expected_swaps
    names = [str(event.data.get("name", "")).rpartition(".")[2] for event in events if event.kind == "override"]
    found = {kernel: names.count(kernel) for kernel in expected}
    evidence = "; ".join(f"{kernel}: {found[kernel]} swaps, {expected[kernel]} expected" for kernel in expected)
    return judge("kernel_applied", found == expected, evidence, float(sum(found.values())))


def kernel_executed(plan: Plan, spec: TitanSpec, events: Iterable[Event]) -> Check:
    """Calls counted in the training process: layers x steps x micro batches, forward and backward, on one backend."""
    expected = plan.swaps.expected_calls(
        steps=spec.steps - (plan.initial.resumed_step or 0),
        micro_batches=plan.micro_batches,
        recompute=spec.resolved_recompute,
    )
    reports = [event.data for event in events if event.kind == "kernel_calls"]
    passed, parts = True, []
    for kernel, calls in expected.items():
        own = [data for data in reports if data.get("name") == kernel]
        forward, backward = (sum(int(data.get(way, 0)) for data in own) for way in ("forward", "backward"))
        backends = sorted({str(data.get("backend")) for data in own})
        passed &= (forward, backward) == (calls.forward, calls.backward) and len(backends) == 1
        parts.append(
            f"{kernel} on {'+'.join(backends) or 'nothing'}: {forward} forward and {backward} backward calls, "
            f"{calls.forward} and {calls.backward} expected"
        )
    return judge("kernel_executed", passed, "; ".join(parts))


def kernel_gate(gate: GateResult) -> Check:
    """The kernels' source against its references, before launch."""
    return judge("kernel_gate", gate.passed, gate.reason, float(len(gate.checks)))


def completed(end: End) -> Check:
    evidence = f"torchrun exit code {end.exit_code}" + (f"; ended by the harness: {end.cause}" if end.cause else "")
    return judge("completed", end.exit_code == 0 and not end.cause, evidence)


def completed_log(rows: Sequence[Row], events: Iterable[Event]) -> Check:
    """The same for a log from elsewhere, which has no exit code; an excerpt may not tell."""
    kinds = {event.kind: event.data for event in events}
    for kind in ("exception", "child_failed", "oom", "nonfinite"):
        if kind in kinds:
            what = " ".join(str(kinds[kind][key]) for key in ("type", "message", "exitcode") if kinds[kind].get(key))
            return Check("completed", FAIL, f"the log shows {kind.replace('_', ' ')} {what}".strip()[:300])
    last = max((row.step for row in rows), default=0)
    total = (kinds.get("training_start", {}) | kinds.get("trainer", {})).get("total_steps")
    if "training_completed" in kinds or (total and last >= total):
        return Check("completed", PASS, f"the log ends with step {last} of {total or 'an unknown number'}")
    if total:
        return Check("completed", FAIL, f"the log ends with step {last} of {total}: cut off, or killed")
    return Check("completed", SKIPPED, f"the log ends with step {last} and tells neither its total nor an error")


def steps_logged(plan: Plan, rows: Sequence[Row]) -> Check:
    """Every step that torchtitan logs is there once: step 1, then the multiples of log_freq."""
    steps, every = plan.config.train.steps, plan.config.train.log_freq
    first = 1 + (plan.initial.resumed_step or 0)
    expected = [step for step in range(first, steps + 1) if step == 1 or step % every == 0]
    found = [row.step for row in rows]
    return judge(
        "steps_logged", found == expected, f"{len(found)} of {len(expected)} steps that are logged", len(found)
    )


def losses_finite(rows: Sequence[Row]) -> Check:
    bad = [row.step for row in rows if row.loss is None or not math.isfinite(row.loss)]
    if not rows:
        return Check("losses_finite", FAIL, "no loss was logged")
    return judge("losses_finite", not bad, f"not finite at steps {bad[:5]}" if bad else f"{len(rows)} finite losses")


def model_parameters(plan: Plan, events: Iterable[Event]) -> Check:
    """The parameters that torchtitan counted against those computed from the shape."""
    expected = plan.shape.num_params()
    found = [event.data.get("parameters") for event in events if event.kind == "model_size"]
    if not found:
        return Check("model_parameters", FAIL, f"the log names no model size, {expected:,} were expected")
    same = found[0] == expected
    evidence = f"{found[0]:,} parameters in the log, {expected:,} from the configuration"
    return judge("model_parameters", same, evidence, float(found[0]))


def model_layers(plan: Plan, report: Report | None) -> Check:
    """The layers that the training process counted in the model it built."""
    expected, layers = plan.shape.num_layers, report.number("layers") if report else None
    if layers is None:
        return Check("model_layers", FAIL, f"the training named no layers, {expected} were expected")
    return judge("model_layers", layers == expected, f"{layers:.0f} layers built, {expected} expected", layers)


@dataclass(frozen=True)
class Report:
    """One ``[pilot] check`` line."""

    verdict: str
    values: dict[str, str]

    def number(self, name: str) -> float | None:
        try:
            return float(self.values[name])
        except (KeyError, ValueError):
            return None


def reported(events: Iterable[Event]) -> dict[str, Report]:
    """The checks that the training process logged, by name; the last of a name counts."""
    found = {}
    for event in events:
        if event.kind == "pilot_check":
            verdict, *pairs = str(event.data.get("values") or "").split()
            values = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            found[str(event.data["name"])] = Report(verdict, values)
    return found


def from_training(name: str, report: Report | None) -> Check:
    """A check made in the training process: its own verdict, and a failure if it never reported."""
    if report is None:
        return Check(name, FAIL, "the training process did not report it")
    evidence = ", ".join(f"{key} {value}" for key, value in report.values.items())
    return Check(name, PASS if report.verdict == PASS else FAIL, evidence, report.number("max_abs_diff"))


def failed_names(checks: Iterable[Check]) -> list[str]:
    """The failures that are the run's."""
    return [check.name for check in checks if check.verdict == FAIL and check.blocking]
