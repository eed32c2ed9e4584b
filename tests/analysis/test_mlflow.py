"""Reading runs from an MLflow store and recording a comparison there, against a real sqlite store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from analysis import mlflow_source
from analysis.__main__ import main
from analysis.comparison import compare
from analysis.mlflow_parent import record
from analysis.sources import from_directories, from_mlflow
from analysis.text import to_data
from harness.mlflow_client import connect
from harness.tracking import Tracker
from tests.analysis.sweeps import REQUEST, make_sweep, write_sweep

STEPS = 12
ARMS = ["--baseline", "kernel=baseline", "--candidate", "kernel=nki_rope"]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> tuple[str, Path]:
    """A database with a sweep of 3 pairs as the harness sends it, and the same sweep's run directories."""
    root = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{root / 'runs' / 'mlflow.db'}"
    for directory in write_sweep(make_sweep(pairs=3, steps=STEPS, effect=0.05, seed=1), root / "runs"):
        Tracker(directory, uri).send()
    return uri, root / "runs"


@pytest.fixture
def fresh(store, tmp_path) -> tuple[str, Path]:
    """A copy of the store that a test may write to."""
    _, runs = store
    shutil.copytree(runs, tmp_path / "runs")
    return f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}", tmp_path / "runs"


def without_origin(data):
    return {key: value for key, value in data.items() if key != "notes"}


def test_a_store_gives_what_the_directories_give(store):
    uri, runs = store
    from_store = to_data(compare(from_mlflow(uri, request=REQUEST), REQUEST))
    assert from_store == to_data(compare(from_directories(runs), REQUEST))
    assert from_store["verdict"] == "faster"


def test_without_files_params_and_histories_give_the_same_verdicts(store, monkeypatch):
    uri, runs = store
    monkeypatch.setattr(mlflow_source.MlflowSource, "_download", lambda self, run_id, name, target: False)
    found = to_data(compare(from_mlflow(uri, request=REQUEST), REQUEST))
    expected = to_data(compare(from_directories(runs), REQUEST))
    assert any("MLflow's params alone" in note for note in found["notes"])
    # Of steps that are missing nobody can tell without the settings of logging; all else is the same.
    for name in ("verdict", "quantities", "loss", "grad_norm", "pairs"):
        assert found[name] == expected[name], name


def test_differences_are_seen_without_files(fresh, monkeypatch):
    uri, _ = fresh
    client = connect(uri)
    monkeypatch.setattr(mlflow_source.MlflowSource, "_download", lambda self, run_id, name, target: False)
    experiment = client.get_experiment_by_name("synthetic").experiment_id
    for run in client.search_runs([experiment]):
        if run.data.params["kernel"] == "nki_rope":
            client.set_tag(run.info.run_id, "git_commit", "1" * 40)
    found = compare(from_mlflow(uri, request=REQUEST), REQUEST)
    assert [item.key for item in found.gate.undeclared] == ["git.commit"]


def test_the_search_is_paged_and_histories_are_read_for_chosen_runs_only(store, monkeypatch):
    from mlflow.tracking import MlflowClient

    uri, _ = store
    asked, downloaded = [], []
    search, download = MlflowClient.search_runs, MlflowClient.download_artifacts

    def search_runs(self, *arguments, **named):
        asked.append(named)
        return search(self, *arguments, **named)

    def download_artifacts(self, run_id, *arguments, **named):
        downloaded.append(run_id)
        return download(self, run_id, *arguments, **named)

    monkeypatch.setattr(MlflowClient, "search_runs", search_runs)
    monkeypatch.setattr(MlflowClient, "download_artifacts", download_artifacts)
    monkeypatch.setattr(mlflow_source, "PAGE", 2)
    runs = from_mlflow(uri)
    assert len(runs) == 6
    assert len(asked) == 3
    assert {named["max_results"] for named in asked} == {2}
    assert downloaded == []
    from analysis.selection import Selector
    from tests.analysis.sweeps import request

    narrow = request(where=Selector.parse(["block=1"]))
    from_mlflow(uri, request=narrow)
    assert len(set(downloaded)) == 2


def test_conditions_on_names_are_left_to_the_server(store, monkeypatch):
    from analysis.selection import Selector
    from tests.analysis.sweeps import request

    uri, _ = store
    found = from_mlflow(uri, request=request(where=Selector.parse(["kernel=nki_rope", "train.steps=12"])))
    assert {run.setting("kernel") for run in found} == {"nki_rope"}
    # None there: all are read, so that the error can name what there is.
    assert len(from_mlflow(uri, request=request(where=Selector.parse(["path=hf_4b"])))) == 6


def test_the_parent_run_carries_the_conclusion(fresh):
    uri, runs = fresh
    comparison = compare(from_directories(runs), REQUEST)
    parent = record(comparison, uri)
    client = connect(uri)
    run = client.get_run(parent)
    effect = comparison.effect("throughput")
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "nki_rope against baseline"
    assert run.data.tags["conclusion"].startswith("nki_rope is faster than baseline by")
    assert client.get_experiment(run.info.experiment_id).tags["mlflow.experimentKind"] == "custom_model_development"
    assert run.data.metrics["delta/throughput/ratio"] == pytest.approx(effect.ratio)
    assert run.data.metrics["delta/throughput/low"] == pytest.approx(effect.low)
    assert run.data.metrics["delta/throughput/high"] == pytest.approx(effect.high)
    assert run.data.metrics["delta/throughput/detectable"] == pytest.approx(effect.power.detectable)
    assert run.data.metrics["delta/loss/max_difference"] < 1e-4
    assert run.data.tags["verdict/throughput"] == "faster"
    assert run.data.tags["verdict/loss"] == "equivalent"
    assert run.data.tags["mlflow.note.content"].startswith("**nki_rope is faster than baseline by")
    files = {item.path for item in client.list_artifacts(parent)}
    assert files == {"report.html", "report.md", "comparison.json", "tables"}
    tables = {item.path for item in client.list_artifacts(parent, "tables")}
    assert tables == {
        f"tables/{name}.{kind}" for name in ("effects", "pairs", "curves", "left_out") for kind in ("csv", "parquet")
    }


def test_members_and_parent_find_each_other(fresh):
    uri, runs = fresh
    parent = record(compare(from_directories(runs), REQUEST), uri)
    client = connect(uri)
    members = client.get_experiment_by_name("synthetic")
    linked = client.search_runs([members.experiment_id], filter_string=f"tags.comparison = '{parent}'")
    assert {child.data.tags["arm"] for child in linked} == {"baseline", "candidate"}
    note = client.get_run(parent).data.tags["mlflow.note.content"]
    for child in linked:
        assert f"(#/experiments/{members.experiment_id}/runs/{child.info.run_id})" in note
    assert len(linked) == 6
    # The parent does not fold its members away, nor fill their charts with numbers of its own.
    assert len(client.search_runs([members.experiment_id])) == 6
    assert not any("mlflow.parentRunId" in child.data.tags for child in linked)
    description = members.tags["mlflow.note.content"]
    assert description.startswith("Latest comparison: **nki_rope is faster than baseline by")
    assert parent in description


def test_a_description_that_a_person_wrote_stays(fresh):
    uri, runs = fresh
    client = connect(uri)
    experiment = client.get_experiment_by_name("synthetic").experiment_id
    client.set_experiment_tag(experiment, "mlflow.note.content", "Ours, do not touch.")
    record(compare(from_directories(runs), REQUEST), uri)
    assert client.get_experiment(experiment).tags["mlflow.note.content"] == "Ours, do not touch."


def test_recording_again_changes_nothing(fresh):
    uri, runs = fresh
    comparison = compare(from_directories(runs), REQUEST)
    first, second = record(comparison, uri), record(comparison, uri)
    assert first == second
    client = connect(uri)
    assert len(client.get_metric_history(first, "delta/throughput/ratio")) == 1
    # The parent is no run to compare.
    assert to_data(compare(from_mlflow(uri, request=REQUEST), REQUEST))["pairs"] == to_data(comparison)["pairs"]


def test_members_that_were_never_sent_do_not_stop_the_record(store, tmp_path):
    _, runs = store
    uri = f"sqlite:///{tmp_path / 'other.db'}"
    parent = record(compare(from_directories(runs), REQUEST), uri)
    client = connect(uri)
    assert client.get_run(parent).data.tags["verdict/throughput"] == "faster"
    assert client.get_experiment_by_name("synthetic") is None


def test_tables_can_be_computed_with(fresh):
    import pandas

    uri, runs = fresh
    comparison = compare(from_directories(runs), REQUEST)
    client = connect(uri)
    folder = Path(client.download_artifacts(record(comparison, uri), "tables"))
    pairs = pandas.read_parquet(folder / "pairs.parquet")
    assert pairs[pairs["quantity"] == "throughput"]["ratio"].tolist() == [
        value.candidate / value.baseline for value in comparison.effect("throughput").values
    ]
    curves = pandas.read_csv(folder / "curves.csv")
    assert len(curves) == 3 * STEPS


def test_the_command_line_records_where_the_runs_are(fresh, tmp_path, capsys):
    uri, runs = fresh
    target = str(tmp_path / "r.html")
    assert main(["report", "--runs", str(runs), *ARMS, "--out", target]) == 0
    assert f"recorded in MLflow ({uri})" in capsys.readouterr().err
    assert main(["compare", "--mlflow", uri, *ARMS]) == 0
    assert "nki_rope is faster" in capsys.readouterr().out


def test_servers_that_do_not_answer_and_unknown_experiments(store, capsys):
    uri, _ = store
    assert main(["compare", "--mlflow", "http://127.0.0.1:9", *ARMS]) == 2
    error = capsys.readouterr().err
    assert "MLflow at http://127.0.0.1:9 does not answer" in error
    assert error.count("\n") == 1
    assert main(["runs", "--mlflow", uri, "--experiment", "nothing"]) == 2
    assert "no experiment 'nothing'" in capsys.readouterr().err
