"""What a run shows about its weights once the training is over: first loss, reference loss, export and reload, copy.

Everything that needs torch happens in the process of ``harness.beside``, which is started when the last step is logged:
its imports then fall into the time in which the training winds up.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import export, reload
from harness.beside import Beside, NoAnswer
from harness.checks import FAIL, PASS, SKIPPED, Check, judge
from harness.first_loss import Band, pretrained_band, random_band
from harness.logs import Row
from harness.plan import Plan
from harness.privacy import redact_text
from harness.rundir import RunDir
from harness.titan.spec import TitanSpec
from harness.watch import End
from harness.weights import read_tensors
from harness.weights_plan import EVIDENCE, reference_plan, saved_to

REPORT = "weights.json"
MIN_ERRORS = 4.0
"""Standard errors by which another RoPE base must be better to be named."""
LOGIT_TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}
"""Of reloaded against trained logits, relative to the largest of them."""


@dataclass
class Proof:
    """The checks of one run that are about its weights."""

    plan: Plan
    spec: TitanSpec
    run: RunDir
    interrupted: Callable[[], bool] = lambda: False
    report: dict[str, Any] = field(default_factory=dict)
    """What weights.json says."""
    _beside: Beside | None = None

    @property
    def needs_process(self) -> bool:
        return self.spec.checkpoint.evidence is not None

    def get_ready(self, rows: Sequence[Row]) -> None:
        """Start the process once the last step is logged; called every second while training."""
        last = self.spec.steps // self.spec.log_freq * self.spec.log_freq
        if self.needs_process and self._beside is None and last and rows and rows[-1].step >= last:
            self._beside = Beside(interrupted=self.interrupted)

    def alongside(self, look: Callable[[], str], rows: Sequence[Row]) -> Callable[[], str]:
        """``look``, and :meth:`get_ready` with the rows so far."""

        def both() -> str:
            self.get_ready(rows)
            return look()

        return both

    def close(self) -> None:
        if self._beside is not None:
            self._beside.close()

    def checks(self, rows: Sequence[Row], end: End) -> list[Check]:
        """All of them, in the order in which they mean something; writes weights.json where there is more to say."""
        first = next((row for row in rows if row.kind == "train" and row.step == 1), None)
        finished = end.exit_code == 0 and not end.cause
        found = [self.first_step_loss(first), *self.initial_values(first)]
        if self.needs_process and finished and self._beside is None:
            self._beside = Beside(interrupted=self.interrupted)
        if self.plan.config.init.mode == "pretrained" or self.plan.config.checks.reference_loss == "always":
            found.append(reference := self.reference_loss(first, finished))
            if found[0].verdict == FAIL and reference.verdict == PASS:
                why = "; plain Transformers gives the same, so that it is the weights themselves that predict so"
                found[0] = replace(found[0], evidence=found[0].evidence + why)
            found += self.rope_theta()
        if self.spec.checkpoint.export_last:
            found += self.exported() if finished else [Check("export_reload", SKIPPED, "the training did not finish")]
        if self.report:
            self.run.write_json(REPORT, self.report)
        if finished and not any(check.verdict == FAIL for check in found):
            shutil.rmtree(self.run.file(EVIDENCE), ignore_errors=True)
        return found

    # -- the first step ------------------------------------------------------------------------------------------------

    def band(self) -> Band:
        transformers = self.plan.config.path.backend == "transformers"
        if self.plan.config.init.mode == "random":
            return random_band(self.plan.shape, transformers=transformers)
        return pretrained_band(self.plan.shape)

    def first_step_loss(self, first: Row | None) -> Check:
        """Whether the loss is one of the weights that were asked for; reported, and a failure with checks=strict."""
        blocking, initial = self.plan.config.checks.strict, self.plan.initial
        if initial.resumed_step is not None:
            evidence = f"{initial.describe()}: no step here is the first of the weights asked for"
            return Check("first_step_loss", SKIPPED, evidence, blocking=blocking)
        if first is None or first.loss is None:
            return Check("first_step_loss", SKIPPED, "step 1 is not in the log", blocking=blocking)
        band = self.band()
        evidence = f"{first.loss:.4f}, expected {band.low:.2f} to {band.high:.2f} ({band.why})"
        return judge("first_step_loss", first.loss in band, evidence, first.loss, blocking=blocking)

    def initial_values(self, first: Row | None) -> list[Check]:
        """Where the first loss is not finite: whether the given weights are, every value read."""
        from harness.checkpoint.verify import finite_values

        initial = self.plan.initial
        if initial.directory is None or initial.resumed_step is not None:
            return []
        if first is None or first.loss is None:  # torchtitan ends before it logs such a loss
            events = (event for event in self.run.events() if event.get("kind") == "nonfinite")
            if not any((event.get("data") or {}).get("step") == 1 for event in events):
                return []
        elif math.isfinite(first.loss):
            return []
        try:
            found = finite_values(initial.directory, read_tensors(initial.directory))
        except ValueError as error:
            return [Check("initial_values", FAIL, str(error))]
        return [judge("initial_values", found.verdict == PASS, found.evidence)]

    def tolerance(self) -> tuple[float, str]:
        """How far the training's loss may be from the float32 reference, and why that far."""
        if self.plan.shape.is_moe:
            return 1e-2, "0.01, since torchtitan's grouped experts compute in bfloat16"
        if self.spec.mixed_precision_param == "bfloat16":
            return 1e-2, "0.01, since the training computes in bfloat16"
        return 1e-3, "0.001"

    def reference_loss(self, first: Row | None, finished: bool) -> Check:
        """The training's first loss against plain Transformers on the same batch."""
        name, planned = "reference_loss_diff", reference_plan(self.plan)
        if not planned.wanted:
            return Check(name, SKIPPED, planned.why)
        if not finished or first is None or first.loss is None:
            return Check(name, SKIPPED, "the training did not finish" if not finished else "step 1 is not in the log")
        tolerance, said = self.tolerance()
        try:
            answer = self._reference(first.loss, tolerance)
        except (NoAnswer, OSError) as error:
            return Check(name, FAIL, f"no reference: {error}")
        self.report["reference"] = answer | {"observed": first.loss, "tolerance": tolerance}
        difference = abs(answer["loss"] - first.loss)
        evidence = f"{first.loss:.5f}, plain Transformers {answer['loss']:.5f} in float32 on the same"
        evidence += f" {answer['tokens']:,} tokens: {difference:.2g} apart, at most {said}"
        if difference <= tolerance and not answer["measured"]:
            return Check(name, PASS, evidence, difference)
        return Check(name, FAIL, f"{evidence}; {self.blame(answer, first.loss)}", difference)

    def rope_theta(self) -> list[Check]:
        """Whether the given weights predict best with the RoPE base that their config.json says; only reported."""
        thetas = (self.report.get("reference") or {}).get("thetas")
        if thetas is None or self.plan.config.init.mode == "random":
            return []
        name, said = "rope_theta_of_weights", f"theta {thetas['said']:g} of config.json"
        if thetas["errors"] < MIN_ERRORS:
            return [Check(name, PASS, f"the weights predict no better with another than with {said}")]
        evidence = (
            f"the weights predict better with theta {thetas['theta']:g}, {thetas['loss']:.4f}, than with {said}, "
        )
        evidence += f"{self.report['reference']['loss']:.4f}: {thetas['errors']:.1f} standard errors"
        return [judge(name, False, evidence, blocking=self.plan.config.checks.strict)]

    def _reference(self, observed: float, tolerance: float) -> dict[str, Any]:
        evidence = self.run.file(EVIDENCE)
        directory = self.spec.checkpoint.initial_load_path
        if directory is None:
            directory = str(evidence / "initial")
            config = export.export_config(self.plan.shape, dtype="float32", source=None)
            export.write_json(Path(directory) / export.CONFIG, config)
        batches = [str(evidence / f"batch-{rank}.npz") for rank in range(self.spec.ranks)]
        if absent := [file for file in batches if not Path(file).is_file()]:
            raise OSError(f"the training left no {Path(absent[0]).name} in {EVIDENCE}")
        assert self._beside is not None
        return self._beside.ask(
            "reference",
            timeout_s=reload.TIMEOUT_S,
            directory=directory,
            batches=batches,
            masked=self.spec.document_mask,
            start=str(evidence / "start.npz"),
            observed=observed,
            tolerance=tolerance,
        )

    def blame(self, answer: dict[str, Any], observed: float) -> str:
        """Which suspects fit, in words; names what cannot be reproduced but was seen."""
        fits = [f"{name} ({detail})" for name, detail in answer["measured"]]
        again = [f"{suspect['name']} ({suspect['detail']})" for suspect in answer["suspects"] if suspect["fits"]]
        fits += [item for item in again if item not in fits]
        if answer["missing"]:
            fits.append(f"missing_keys ({len(answer['missing'])}, e.g. {answer['missing'][0]})")
        transformers = self.plan.config.path.backend == "transformers"
        if self.spec.checkpoint.initial_load_path and observed in random_band(
            self.plan.shape, transformers=transformers
        ):
            fits.append("not_loaded (the loss is that of random weights)")
        tried = sorted({suspect["name"] for suspect in answer["suspects"]})
        return f"fits: {'; '.join(fits)}" if fits else f"no suspect fits, tried {', '.join(tried)}"

    # -- the last step -------------------------------------------------------------------------------------------------

    def exported(self) -> list[Check]:
        """Finish the export, load it again, and copy it where asked."""
        checkpoint, config = self.spec.checkpoint, self.plan.config
        source = Path(checkpoint.initial_load_path) if checkpoint.initial_load_path else None
        try:
            saved = saved_to(self.plan, self.run.path)
            assert saved is not None
            place = export.collect(saved, self.spec.steps, self.run.path)
            tokenizer = Path(self.spec.data.tokenizer)
            export.add_assets(place, self.plan.shape, dtype=checkpoint.export_dtype, tokenizer=tokenizer, source=source)
        except (OSError, ValueError) as error:
            return [Check("export_reload", FAIL, f"no export: {error}")]
        found = [self.reloaded(place)]
        if config.export.copy_to:
            found.append(self.copied(place, config.export.copy_to))
        return found

    def reloaded(self, place: Path) -> Check:
        """The export as Transformers sees it: 0 missing, unexpected and mismatched keys, and the trained logits."""
        assert self._beside is not None
        probe = self.run.file(EVIDENCE) / "logits.npz"
        answer = reload.ask(self._beside, place, probe=probe if probe.is_file() else None)
        self.report["export"] = answer | {"directory": str(place)}
        if answer["loaded"] is None:
            return Check("export_reload", SKIPPED, answer["error"])
        if not answer["loaded"]:
            return Check("export_reload", FAIL, f"Transformers cannot load it: {answer['error']}")
        narrow = self.spec.mixed_precision_param == "bfloat16" or self.spec.checkpoint.export_dtype != "float32"
        tolerance = LOGIT_TOLERANCE["bfloat16" if narrow or self.plan.shape.is_moe else "float32"]
        return reload_check(answer, expected_params=self.plan.shape.num_params(), tolerance=tolerance)

    def copied(self, place: Path, url: str) -> Check:
        """The copy of the export elsewhere, read back file by file."""
        target = f"{url.rstrip('/')}/{self.run.run_id}"
        shown = redact_text(target)
        try:
            copied = export.copy_verified(place, target)
        except Exception as error:  # of whatever file system that is
            return Check("export_copy", FAIL, f"not copied to {shown}: {redact_text(str(error))}")
        self.report["copy"] = export.manifest(copied, shown)
        size = self.report["copy"]["bytes"]
        evidence = f"{len(copied)} files, {size:,} bytes at {shown}, size and SHA-256 of each as read back"
        return Check("export_copy", PASS, evidence, float(size))


def reload_check(answer: dict[str, Any], *, expected_params: int, tolerance: float) -> Check:
    """Verdict on a report of ``harness.reload`` about a directory that was loaded."""
    counts, logits = answer["counts"], answer["logits"]
    listed = "/".join(str(counts[kind]) for kind in ("missing", "unexpected", "mismatched"))
    head = "no tied head" if not answer["tied"] else "lm_head is the embedding"
    if reload.head_lost(answer):
        head = "lm_head should be the embedding and is another"
    evidence = [
        f"{listed} missing/unexpected/mismatched keys",
        f"{answer['parameters']:,} parameters, {'+'.join(answer['dtypes'])}",
        head,
    ]
    passed = not any(counts.values()) and answer["parameters"] == expected_params and not reload.head_lost(answer)
    if answer["parameters"] != expected_params:
        evidence.append(f"{expected_params:,} parameters expected")
    if logits is None:
        evidence.append("the trained model left no logits to compare with")
        return Check("export_reload", FAIL, "; ".join(evidence))
    allowed = tolerance * max(1.0, logits["scale"])
    evidence.append(f"logits {logits['max_abs_diff']:.2g} from the trained model's, at most {allowed:.2g}")
    if logits["routing_bias"]:
        evidence.append(
            f"the routers' balancing bias of up to {logits['routing_bias']:.2g} has no place in the format and is left "
            f"out: with it the logits are {logits['lost']:.2g} away"
        )
    return judge(
        "export_reload", passed and logits["max_abs_diff"] <= allowed, "; ".join(evidence), logits["max_abs_diff"]
    )
