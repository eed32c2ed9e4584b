"""A comparison in MLflow: one parent run with the verdict, its member runs below it. Recording it again changes
nothing."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import report, tables, text, wording
from analysis.comparison import Comparison
from analysis.curves import CurveVerdict
from analysis.mlflow_source import COMPARISON_TAG
from analysis.runs import Run
from harness.mlflow_client import artifact_location, connect

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

PARENT_TAG, ARM_TAG = "mlflow.parentRunId", "arm"


def record(comparison: Comparison, uri: str) -> str:
    """Write the parent run and link its members; returns the parent's MLflow run id.

    The parent is found again by its members and request, so that a comparison has one parent however often it is made.
    Raises what MLflow raises when the server does not answer.
    """
    from mlflow.entities import Metric, Param, RunTag

    client = connect(uri)
    experiment_id = _experiment(client, uri, comparison.pairs[0].baseline.experiment)
    parent = _parent(client, experiment_id, comparison)
    known = client.get_run(parent).data
    time_ms = client.get_run(parent).info.start_time
    client.log_batch(
        parent,
        metrics=[
            Metric(name, value, time_ms, 0) for name, value in metrics(comparison) if known.metrics.get(name) != value
        ],
        params=[Param(key, value) for key, value in params(comparison).items()],
        tags=[RunTag(key, value) for key, value in tags(comparison).items()],
    )
    with tempfile.TemporaryDirectory() as folder:
        write_artifacts(comparison, Path(folder))
        client.log_artifacts(parent, folder)
    for arm, run in members(comparison):
        _link(client, parent, arm, run)
    client.set_terminated(parent, "FINISHED")
    return parent


def metrics(comparison: Comparison) -> Iterator[tuple[str, float]]:
    """``delta/<quantity>/ratio | low | high | detectable`` and the differences of the curves; unknown ones left out."""
    for effect in comparison.effects:
        numbers = {"ratio": effect.ratio, "low": effect.low, "high": effect.high, "detectable": effect.power.detectable}
        for name, value in numbers.items():
            if math.isfinite(value):
                yield f"delta/{effect.quantity.name}/{name}", value
    for name, curve in _curves(comparison):
        for key in ("ratio", "max_difference", "mean_difference"):
            if math.isfinite(getattr(curve, key)):
                yield f"delta/{name}/{key}", getattr(curve, key)
    yield "pairs", float(len(comparison.pairs))


def params(comparison: Comparison) -> dict[str, str]:
    """What was asked."""
    request = comparison.request
    return {
        "baseline": str(request.baseline),
        "candidate": str(request.candidate),
        "where": str(request.where),
        "allow": ", ".join(request.allow) or "nothing else",
        "margin": f"{request.margin:g}",
        "loss_margin": f"{request.loss_margin:g}",
    }


def tags(comparison: Comparison) -> dict[str, str]:
    """Verdicts, and what a person filters by; the note reads as the conclusion."""
    verdicts = {f"verdict/{effect.quantity.name}": effect.verdict for effect in comparison.effects}
    verdicts |= {f"verdict/{name}": curve.verdict for name, curve in _curves(comparison)}
    return verdicts | {
        COMPARISON_TAG: comparison_id(comparison),
        "rehearsal": str(comparison.rehearsal).lower(),
        "mlflow.note.content": note(comparison),
    }


def note(comparison: Comparison) -> str:
    """The conclusion in plain words, as Markdown, within MLflow's 8,000 characters."""
    return text.to_markdown(comparison)[:8000]


def write_artifacts(comparison: Comparison, folder: Path) -> None:
    """The report, the data behind it and the tables."""
    (folder / "report.html").write_text(report.to_html(comparison), encoding="utf-8")
    (folder / "report.md").write_text(text.to_markdown(comparison), encoding="utf-8")
    data = json.dumps(text.to_data(comparison), indent=1, ensure_ascii=False)
    (folder / "comparison.json").write_text(data + "\n", encoding="utf-8")
    tables.write_tables(comparison, folder / "tables")


def members(comparison: Comparison) -> Iterator[tuple[str, Run]]:
    for pair in comparison.pairs:
        yield "baseline", pair.baseline
        yield "candidate", pair.candidate


def comparison_id(comparison: Comparison) -> str:
    """The same for the same runs under the same question."""
    key = [sorted(run.run_id for run in comparison.runs), sorted(params(comparison).items())]
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]


def _curves(comparison: Comparison) -> list[tuple[str, CurveVerdict]]:
    named = (("loss", comparison.loss), ("grad_norm", comparison.grad_norm))
    return [(name, curve) for name, curve in named if curve is not None]


def _experiment(client: MlflowClient, uri: str, name: str) -> str:
    """The members' experiment, so that they show below the parent; made where the members were never sent."""
    found = client.get_experiment_by_name(name)
    return found.experiment_id if found else client.create_experiment(name, artifact_location(uri))


def _parent(client: MlflowClient, experiment_id: str, comparison: Comparison) -> str:
    mark = comparison_id(comparison)
    found = client.search_runs([experiment_id], filter_string=f"tags.{COMPARISON_TAG} = '{mark}'", max_results=1)
    if found:
        return found[0].info.run_id
    baseline, candidate = wording.arm_names(comparison)
    name = f"{candidate} against {baseline}"
    return client.create_run(experiment_id, run_name=name[:250], tags={COMPARISON_TAG: mark}).info.run_id


def _link(client: MlflowClient, parent: str, arm: str, run: Run) -> None:
    """Nest a member below the parent, unless it is nested elsewhere already; its arm becomes a tag to group by."""
    for found in _find(client, run):
        if PARENT_TAG not in found.data.tags:
            client.set_tag(found.info.run_id, PARENT_TAG, parent)
        client.set_tag(found.info.run_id, ARM_TAG, arm)
        client.set_tag(found.info.run_id, f"comparison/{parent}", arm)


def _find(client: MlflowClient, run: Run) -> list[Any]:
    experiment = client.get_experiment_by_name(run.experiment)
    if experiment is None or "'" in run.run_id:
        return []
    text_filter = f"tags.run_id = '{run.run_id}'"
    return list(client.search_runs([experiment.experiment_id], filter_string=text_filter, max_results=1))
