"""What MLflow shows of a run directory: pure functions from its files to metrics, params, tags and note.

Names are grouped by a slash, as MLflow's charts group them; brackets and percent signs, which torchtitan uses in its
own names, are refused by MLflow.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harness.rundir import RunDir, to_float

TRAIN = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "tps": "train/tps_per_rank",
    "tflops": "train/tflops",
    "mfu": "train/mfu_reported",
    "memory_gib": "memory/reserved_gib",
    "memory_pct": "memory/reserved_pct",
}
VALIDATE = {"loss": "validate/loss", "tps": "validate/tps_per_rank", "memory_gib": "validate/reserved_gib"}

# Summary keys whose place in MLflow differs from their path in summary.json.
SUMMARY_NAMES = {
    "steps": "steps",
    "warmup_steps": "warmup/steps",
    "compile_s": "warmup/compile_s",
}
SUMMARY_LEFT_OUT = ("last_step", "first_steady_step", "segment", "warmup", "step_times")
"""Parts of summary.json that are no results: bookkeeping and the parameters of rules."""


@dataclass(frozen=True)
class Point:
    """One value of one metric. ``time_ms`` is Unix time in milliseconds."""

    name: str
    value: float
    step: int
    time_ms: int


def row_points(row: Mapping[str, Any], fallback_ms: int) -> Iterator[Point]:
    """The metrics of one step row; a null stays out."""
    time_ms = to_ms(row.get("time")) or fallback_ms
    for key, name in (TRAIN if row.get("kind") == "train" else VALIDATE).items():
        value = to_float(row.get(key))
        if value is not None:
            yield Point(name, value, int(row["step"]), time_ms)


def sample_points(sample: Mapping[str, Any], step: int) -> Iterator[Point]:
    """The numeric values of a host or device sample as ``system/...``, at the step that was under way."""
    time_ms = to_ms(sample.get("time"))
    if time_ms is None:
        return
    for name, value in flatten({key: item for key, item in sample.items() if key not in ("time", "kind", "pid")}):
        yield Point(f"system/{clean_name(name)}", value, step, time_ms)


class StepClock:
    """Which step was under way at a moment, from the times at which steps were logged."""

    LATE_MS = 30_000
    """A row is on disk long before this time has passed since it was printed."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._steps: list[int] = []

    def add(self, row: Mapping[str, Any]) -> None:
        time_ms = to_ms(row.get("time"))
        if time_ms is not None and row.get("kind") == "train":
            self._times.append(time_ms)
            self._steps.append(int(row["step"]))

    def at(self, sample: Mapping[str, Any]) -> int:
        """The last step that had been logged when the sample was taken; 0 before the first."""
        place = bisect.bisect_right(self._times, to_ms(sample.get("time")) or 0)
        return self._steps[place - 1] if place else 0

    def certain(self, samples: Sequence[Mapping[str, Any]]) -> int:
        """How many of these samples, the first ones, no row that is still to come can precede."""
        latest = to_ms(samples[-1].get("time")) or 0 if samples else 0
        before = max(self._times[-1] if self._times else 0, latest - self.LATE_MS)
        return next((n for n, sample in enumerate(samples) if (to_ms(sample.get("time")) or 0) >= before), len(samples))


def summary_points(summary: Mapping[str, Any], time_ms: int) -> list[Point]:
    """Every number of the summary, at the last step."""
    last = int(summary.get("steps") or 0)
    points = []
    for name, value in flatten({key: item for key, item in summary.items() if key not in SUMMARY_LEFT_OUT}):
        points.append(Point(SUMMARY_NAMES.get(name, clean_name(name)), value, last, time_ms))
    if isinstance(summary.get("recompile_steps"), list):
        points.append(Point("warmup/recompiles", float(len(summary["recompile_steps"])), last, time_ms))
    return points


def check_points(checks: Iterable[Mapping[str, Any]], time_ms: int) -> list[Point]:
    """The numeric evidence of checks: ``check/first_step_loss`` is the value of the check of that name."""
    points = []
    for check in checks:
        value = to_float(check.get("value")) if isinstance(check.get("value"), (int, float)) else None
        if value is not None:
            points.append(Point(f"check/{clean_name(str(check['name']))}", value, 0, time_ms))
    return points


def params(config: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, str]:
    """What a person compares runs by."""
    path, platform, train = config.get("path", {}), config.get("platform", {}), config.get("train", {})
    scale, shape = config.get("scale", {}), manifest.get("shape", {})
    values = {
        "path": path.get("name"),
        "kernel": config.get("kernel", {}).get("name"),
        "platform": platform.get("name"),
        "scale": scale_name(config) if config else None,
        "init": config.get("init", {}).get("mode"),
        "data": config.get("data", {}).get("name"),
        "layers": shape.get("num_layers", scale.get("num_layers")),
        "hidden": shape.get("hidden"),
        "vocab": shape.get("vocab"),
        "experts": shape.get("num_experts") or None,
        "top_k": shape.get("top_k") or None,
        "ranks": total_ranks(platform),
        "nodes": platform.get("num_nodes"),
        "lnc": platform.get("lnc"),
        **{key: train.get(key) for key in (
            "steps", "seq_len", "local_batch_size", "global_batch_size", "dtype", "learning_rate", "seed", "compile",
            "document_mask",
        )},
        "phase_rule": config.get("phases", {}).get("rule"),
        "replicate": config.get("replicate"),
        **{f"version.{name}": value for name, value in manifest.get("versions", {}).items()},
    }  # fmt: skip
    values |= {f"ingested.{key}": value for key, value in manifest.get("ingested", {}).items()}
    return {key: str(value) for key, value in values.items() if value is not None}


def total_ranks(platform: Mapping[str, Any]) -> int | None:
    """Ranks of the whole job."""
    ranks = platform.get("num_ranks")
    return None if ranks is None else int(ranks) * int(platform.get("num_nodes") or 1)


def scale_name(config: Mapping[str, Any]) -> str:
    """full, or rehearsal; with the number of layers where that was reduced."""
    name = "rehearsal" if config.get("rehearsal") else "full"
    layers = (config.get("scale") or {}).get("num_layers")
    return name if layers is None else f"{name}-{layers}-layers"


def tags(run: RunDir) -> dict[str, str]:
    """What a person filters runs by, the note, and what became of the run."""
    config, manifest, summary, status = run.config(), run.manifest(), run.summary(), run.status()
    git = manifest.get("git", {})
    values = {
        "run_id": run.run_id,
        "rehearsal": str(bool(config.get("rehearsal"))).lower(),
        "source": manifest.get("source", "pilot"),
        "config_hash": manifest.get("config_hash"),
        "git_commit": git.get("commit"),
        "git_dirty": str(git["dirty"]).lower() if "dirty" in git else None,
        "git_changes": git.get("changes") or None,
        "kernel_backend": manifest.get("kernel_backend", "none"),
        "init": (manifest.get("init") or {}).get("from"),
        "torchtitan_version": manifest.get("versions", {}).get("torchtitan"),
        "hostname": manifest.get("hardware", {}).get("hostname"),
        "instance_type": manifest.get("hardware", {}).get("instance_type"),
        "slurm_job_id": (manifest.get("cluster") or {}).get("slurm_job_id"),
        "nodes": ",".join((manifest.get("cluster") or {}).get("nodes") or []),
        "attempt": status.attempt if status and status.job else None,
        "phase": summary.get("phase"),
        "warmup/rule": (config.get("phases") or {}).get("rule"),
        "status": status.state if status else None,
        "status_reason": status.reason if status else None,
        "sweep": manifest.get("sweep"),
        **{key: config.get(key) for key in ("replicate", "block", "order")},
        **{f"check/{check['name']}": check["verdict"] for check in run.checks()},
        "mlflow.note.content": note(run),
    }
    return {key: str(value) for key, value in values.items() if value not in (None, "")}


def note(run: RunDir) -> str:
    """Five lines that say what ran and what came out, as Markdown."""
    config, manifest, summary, status = run.config(), run.manifest(), run.summary(), run.status()
    shape, train = manifest.get("shape", {}), config.get("train", {})
    platform = config.get("platform", {})
    path = config.get("path", {}).get("name", "a log from elsewhere")
    kernel = config.get("kernel", {}).get("name", "unknown")
    backend = manifest.get("kernel_backend", "none")
    executed = "" if backend == "none" else f" executed by its {backend}" if backend != "neuron" else " on Neuron"
    warning = " **Rehearsal on CPU at narrow widths: no figure here says anything about Trainium.**"
    experts = f", {shape['num_experts']} experts, top {shape['top_k']}" if shape.get("num_experts") else ""
    steady, end, loss = (summary.get(key) or {} for key in ("steady", "end_to_end", "loss"))
    state = f"{status.state}{': ' + status.reason if status.reason else ''}" if status else "unknown"
    failed = [check["name"] for check in run.checks() if check["verdict"] == "fail"]
    lines = [
        f"`{path}`, kernel `{kernel}`{executed}, platform `{platform.get('name', 'unknown')}`."
        + (warning if config.get("rehearsal") else ""),
        f"Model: {shape.get('num_layers', '?')} layers, hidden {shape.get('hidden', '?')}{experts}; "
        f"{total_ranks(platform) or '?'} ranks, sequence {train.get('seq_len', '?')}, global batch "
        f"{train.get('global_batch_size', '?')}, {train.get('dtype', '?')}, seed {train.get('seed', '?')}.",
        f"Loss {number(loss.get('first'))} → {number(loss.get('last'))} in {summary.get('steps', 0)} steps.",
        f"Steady ({summary.get('phase', 'unknown')}, after {summary.get('warmup_steps', '?')} warm-up steps): "
        f"{number(steady.get('tokens_per_s'))} tokens/s over all ranks; end to end {number(end.get('tokens_per_s'))}.",
        f"Status: {state}. Checks failed: {', '.join(failed) if failed else 'none'}.",
    ]
    return "\n\n".join(lines)


def number(value: Any) -> str:
    """Four significant digits, thousands separated; a dash for nothing."""
    value = to_float(value) if not isinstance(value, (dict, list)) else None
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 and math.isfinite(value) else f"{value:.4g}"


def flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numeric leaves of nested mappings as ``a/b`` names; text, lists, booleans and nulls stay out."""
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, Mapping):
            yield from flatten(item, f"{name}/")
        elif (isinstance(item, (int, float)) and not isinstance(item, bool)) or item in ("nan", "inf", "-inf"):
            yield name, float(item)


def clean_name(name: str) -> str:
    """A metric name that MLflow accepts: letters, digits, and ``_ - . : / `` and spaces."""
    return "".join(char if char.isalnum() or char in "_-./: " else "_" for char in name)


def to_ms(time: Any) -> int | None:
    """ISO 8601 as Unix milliseconds; a time without a zone is this machine's local time."""
    if not isinstance(time, str) or not time:
        return None
    try:
        return int(datetime.fromisoformat(time).timestamp() * 1000)
    except ValueError:
        return None
