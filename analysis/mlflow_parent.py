"""A comparison in MLflow: one parent run with the verdict, linked with its member runs by tags and by its note.

It is a run of an experiment of its own, ``<experiment> comparisons``. With its members nested below it, it would fold
them away from MLflow's tables and charts, which a person groups by kernel, and fill those with numbers that only it
has. The description of the members' experiment says the verdict. Recording a comparison again changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import report, tables, text, wording
from analysis.comparison import Comparison
from analysis.curves import CurveVerdict
from analysis.mlflow_source import COMPARISON_TAG
from analysis.runs import Run
from harness.mlflow_client import artifact_location, connect

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

NOTE, ARM_TAG, LINK_TAG = "mlflow.note.content", "arm", "comparison"
SUFFIX = " comparisons"
KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Opens as training runs, as the members' experiment does."""
MARK = "Latest comparison: "
"""Begins the description that we may replace; one that a person wrote stays."""
MAX_NOTE, MAX_TAG = 8000, 2000


def record(comparison: Comparison, uri: str) -> str:
    """Write the parent run and link its members; returns the parent's MLflow run id.

    The parent is found again by its members and request, so that a comparison has one parent however often it is made.
    Raises what MLflow raises when the server does not answer.
    """
    from mlflow.entities import Metric, Param, RunTag

    client = connect(uri)
    experiment_id = _experiment(client, uri, f"{comparison.pairs[0].baseline.experiment}{SUFFIX}")
    parent = _parent(client, experiment_id, comparison)
    known, time_ms = client.get_run(parent).data, client.get_run(parent).info.start_time
    linked = {run.run_id: _link(client, parent, arm, run) for arm, run in members(comparison)}
    client.log_batch(
        parent,
        metrics=[
            Metric(name, value, time_ms, 0) for name, value in metrics(comparison) if known.metrics.get(name) != value
        ],
        params=[Param(key, value) for key, value in params(comparison).items()],
        tags=[RunTag(key, value) for key, value in (tags(comparison) | {NOTE: note(comparison, linked)}).items()],
    )
    with tempfile.TemporaryDirectory() as folder:
        write_artifacts(comparison, Path(folder))
        client.log_artifacts(parent, folder)
    client.set_terminated(parent, "FINISHED")
    _describe(client, comparison, f"#/experiments/{experiment_id}/runs/{parent}")
    return parent


def metrics(comparison: Comparison) -> Iterator[tuple[str, float]]:
    """``delta/<quantity>/ratio | low | high | detectable`` and the differences of the curves; unknown ones left out."""
    for effect in comparison.effects:
        numbers = {"ratio": effect.ratio, "low": effect.low, "high": effect.high, "detectable": effect.power.detectable}
        if effect.floor:
            numbers["noise_floor"] = effect.floor
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
    """Verdicts, and what a person filters by."""
    verdicts = {f"verdict/{effect.quantity.name}": effect.verdict for effect in comparison.effects}
    verdicts |= {f"verdict/{name}": curve.verdict for name, curve in _curves(comparison)}
    return verdicts | {
        "conclusion": text.encodable(wording.headline(comparison))[:MAX_TAG],
        COMPARISON_TAG: comparison_id(comparison),
        "rehearsal": str(comparison.rehearsal).lower(),
    }


def note(comparison: Comparison, linked: Mapping[str, str]) -> str:
    """The conclusion in plain words, as Markdown, within the limit of characters; ``linked``: members' addresses."""
    runs = [f"[{run.run_id}]({linked[run.run_id]})" for _, run in members(comparison) if linked.get(run.run_id)]
    links = f"\n\nRuns: {', '.join(runs)}" if runs else ""
    conclusion = text.to_markdown(comparison)
    conclusion = text.encodable(conclusion)
    return conclusion + links if len(conclusion + links) <= MAX_NOTE else conclusion[:MAX_NOTE]


def write_artifacts(comparison: Comparison, folder: Path) -> None:
    """The report, the data behind it and the tables."""
    (folder / "report.html").write_text(text.encodable(report.to_html(comparison)), encoding="utf-8")
    (folder / "report.md").write_text(text.encodable(text.to_markdown(comparison)), encoding="utf-8")
    data = json.dumps(text.to_data(comparison), indent=1, ensure_ascii=False)
    (folder / "comparison.json").write_text(text.encodable(data) + "\n", encoding="utf-8")
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
    """The experiment's id; it is made where there is none."""
    found = client.get_experiment_by_name(name)
    return found.experiment_id if found else client.create_experiment(name, artifact_location(uri), tags=KIND)


def _parent(client: MlflowClient, experiment_id: str, comparison: Comparison) -> str:
    mark = comparison_id(comparison)
    found = client.search_runs([experiment_id], filter_string=f"tags.{COMPARISON_TAG} = '{mark}'", max_results=1)
    if found:
        return found[0].info.run_id
    name = text.encodable(wording.title(comparison))
    return client.create_run(experiment_id, run_name=name[:250], tags={COMPARISON_TAG: mark}).info.run_id


def _link(client: MlflowClient, parent: str, arm: str, run: Run) -> str:
    """Tag a member with its comparison and its arm, to group by; its address in MLflow, empty where it is not there."""
    experiment = client.get_experiment_by_name(run.experiment)
    if experiment is None or "'" in run.run_id:
        return ""
    by_id = f"tags.run_id = '{run.run_id}'"
    found = client.search_runs([experiment.experiment_id], filter_string=by_id, max_results=1)
    if not found:
        return ""
    client.set_tag(found[0].info.run_id, ARM_TAG, arm)
    client.set_tag(found[0].info.run_id, LINK_TAG, parent)
    return f"#/experiments/{experiment.experiment_id}/runs/{found[0].info.run_id}"


def _describe(client: MlflowClient, comparison: Comparison, address: str) -> None:
    """Put the verdict into the description of the members' experiment, unless a person wrote one."""
    experiment = client.get_experiment_by_name(comparison.pairs[0].baseline.experiment)
    if experiment is not None and experiment.tags.get(NOTE, MARK).startswith(MARK):
        description = f"{MARK}**{text.escaped(wording.headline(comparison))}** [Report and tables]({address})"
        client.set_experiment_tag(experiment.experiment_id, NOTE, description)
