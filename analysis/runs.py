"""One run as the analysis sees it: flat settings, circumstances, summary and curves, wherever it was read from."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from harness.rundir import CHECKS, RunDir, to_float

# What shapes a run from outside; job numbers, ports and addresses are left out, since they differ in every run.
ENVIRONMENT = re.compile(r"(OMP_|MKL_|TORCH|PYTORCH|NEURON|NCCL_|GLOO_|FI_|CUDA_|NVIDIA_|XLA_|NKI_|TOKENIZERS_)")
VOLATILE = re.compile(r"(_PORT|_ADDR|_ID|_DIR|_FILE|_PATH|_LOG\w*|_URL|_HOST\w*|_CACHE\w*)$")
# How the numbers were made: MFU under another convention or against another peak is another number.
MEASURING = ("convention", "per_token", "peak_per_rank", "peak_source", "device", "lnc")
MAX_STEP = 2**53
SERIES = ("loss", "grad_norm", "tps", "memory_gib")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run to be compared. Mappings are flat: ``train.seq_len``, ``versions.torch``."""

    run_id: str
    source: str
    """Where it was read from: a directory or an MLflow run."""
    experiment: str
    config: Mapping[str, Any]
    circumstances: Mapping[str, Any]
    """What else must be equal: versions, code, hardware, environment, model shape, peak FLOPS."""
    summary: Mapping[str, Any]
    failed_checks: tuple[tuple[str, str], ...] = ()
    """Name and evidence of each check that did not pass."""
    passed_checks: frozenset[str] = frozenset()
    state: str = ""
    reason: str = ""
    started: str = ""
    sweep: str = ""
    complete_config: bool = True
    """False where only MLflow's params were there, which are a part of the configuration."""
    mlflow_run_id: str = ""
    read_rows: Callable[[], Iterable[Mapping[str, Any]]] = field(default=tuple, repr=False, compare=False)

    @property
    def replicate(self) -> int | None:
        return _integer(self.config.get("replicate"))

    @property
    def block(self) -> int | None:
        return _integer(self.config.get("block"))

    @property
    def order(self) -> int | None:
        return _integer(self.config.get("order"))

    @property
    def rehearsal(self) -> bool:
        return str(self.config.get("rehearsal", False)).lower() == "true"

    @property
    def recompile_steps(self) -> list[int]:
        steps = self.summary.get("recompile_steps")
        return [step for step in steps if isinstance(step, int)] if isinstance(steps, list) else []

    @property
    def warmup_steps(self) -> int:
        number = self.number("warmup_steps")
        return int(number) if number is not None and 0 <= number < MAX_STEP else 0

    def setting(self, key: str) -> Any:
        """A setting or circumstance by its dotted key; a group answers with its name (``kernel``: ``kernel.name``)."""
        of_the_run = {"run_id": self.run_id, "status": self.state, "phase": self.summary.get("phase")}
        of_the_run |= {"experiment": self.experiment, "sweep": self.sweep}
        for values in (self.config, self.circumstances, of_the_run):
            for name in (key, f"{key}.name"):
                if name in values:
                    return values[name]
        return None

    def fact(self, key: str) -> Any:
        """A value of the summary by its dotted key, or None."""
        value: Any = self.summary
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def number(self, *keys: str) -> float | None:
        """The first of the dotted summary keys that holds a number; NaN and infinities come back as such."""
        for key in keys:
            value = self.fact(key)
            if isinstance(value, (int, float, str)) and not isinstance(value, bool):
                try:
                    return to_float(value)
                except (ValueError, OverflowError):
                    continue
        return None

    @cached_property
    def series(self) -> dict[str, list[tuple[int, float]]]:
        """(step, value) points of the training rows for each of ``SERIES``, in the order of the log; nulls left out.
        What is no number counts as NaN, which is never equivalent; a row without a step that can be is no row."""
        points: dict[str, list[tuple[int, float]]] = {name: [] for name in SERIES}
        for row in self.read_rows():
            step = row.get("step")
            if row.get("kind", "train") != "train" or not isinstance(step, (int, float)):
                continue
            if not 0 <= step < MAX_STEP or step != int(step):
                continue
            for name, values in points.items():
                value = row.get(name)
                if value is not None:
                    values.append((int(step), _value(value)))
        return points

    @property
    def has_nonfinite_loss(self) -> bool:
        return any(not math.isfinite(value) for _, value in self.series["loss"])


def from_directory(directory: RunDir) -> Run:
    """Read one run directory; what is absent there is empty here and is found by the gate."""
    config, manifest, summary = flat(directory.config()), directory.manifest(), directory.summary()
    status = directory.status()
    failed, passed = split_checks(directory.checks())
    if directory.file(CHECKS).exists() and not isinstance(directory.read_json(CHECKS), list):
        failed += ((CHECKS, "cannot be read, so nothing is proven"),)
    return Run(
        run_id=directory.run_id,
        source=str(directory.path),
        experiment=directory.experiment,
        config=config,
        circumstances=circumstances(manifest, summary),
        summary=summary,
        failed_checks=failed,
        passed_checks=passed,
        state=status.state if status else "",
        reason=status.reason if status else "no status.json",
        started=str((status.started if status else "") or manifest.get("created", "")),
        sweep=str(config.get("sweep") or manifest.get("sweep") or ""),
        complete_config=bool(config),
        mlflow_run_id=_mlflow_run_id(directory.sent()),
        read_rows=directory.rows,
    )


def circumstances(manifest: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a manifest and a summary that must be equal in both arms."""
    kept = {key: manifest.get(key) for key in ("versions", "git", "hardware", "shape")}
    facts = flat({key: value for key, value in kept.items() if isinstance(value, Mapping)})
    environment = manifest.get("environment")
    for name, value in environment.items() if isinstance(environment, Mapping) else ():
        if ENVIRONMENT.match(name) and not VOLATILE.search(name):
            facts[f"environment.{name}"] = value
    if "kernel_backend" in manifest:
        facts["kernel.executed_by"] = manifest["kernel_backend"]
    flops = summary.get("flops")
    if isinstance(flops, Mapping):
        facts |= {f"flops.{key}": flops[key] for key in MEASURING if key in flops}
    return facts


def split_checks(
    checks: Iterable[Mapping[str, Any]],
) -> tuple[tuple[tuple[str, str], ...], frozenset[str]]:
    """Checks that failed, with their evidence, and names of those that passed; any verdict not known is a failure."""
    failed, passed = [], set()
    for check in checks:
        name, verdict = str(check.get("name", "unnamed")), check.get("verdict")
        if verdict == "pass":
            passed.add(name)
        elif verdict != "skipped":
            failed.append((name, _brief(check.get("evidence", ""))))
    return tuple(failed), frozenset(passed)


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys; lists stay values."""
    return dict(_leaves(value, prefix))


def _leaves(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _leaves(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def _value(value: Any) -> float:
    try:
        return math.nan if isinstance(value, bool) else to_float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return math.nan


def _integer(value: Any) -> int | None:
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _brief(evidence: Any) -> str:
    text = evidence if isinstance(evidence, str) else json.dumps(evidence, default=str)
    return text if len(text) <= 200 else text[:199] + "…"


def _mlflow_run_id(sent: Mapping[str, Any]) -> str:
    servers = sent.get("servers") or []
    return str(servers[0].get("mlflow_run_id", "")) if servers else ""
