"""The command line: answers, exit codes, and errors of one line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from analysis.__main__ import main
from tests.analysis.sweeps import candidates, make_sweep, write_sweep

ARMS = ["--baseline", "kernel=baseline", "--candidate", "kernel=nki_rope"]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    write_sweep(make_sweep(pairs=6, steps=12, effect=0.05, seed=1), root)
    return ["--runs", str(root)]


@pytest.fixture(scope="module")
def unequal(tmp_path_factory):
    root = tmp_path_factory.mktemp("unequal")
    runs = make_sweep(pairs=3, steps=12)
    for run in candidates(runs):
        run.config["train"]["seq_len"] = 2048
    write_sweep(runs, root)
    return ["--runs", str(root)]


def test_compare_prints_the_verdict(sweep, capsys):
    assert main(["compare", *sweep, *ARMS]) == 0
    out = capsys.readouterr().out
    assert out.startswith("nki_rope is faster than baseline by")
    assert "Steady throughput" in out
    assert "kernel.name: baseline → nki_rope" in out


def test_compare_as_json(sweep, capsys):
    assert main(["compare", "--json", *sweep, *ARMS]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "faster"
    assert len(data["pairs"]) == 6
    assert data["quantities"]["throughput"]["pairs_needed_for_1_percent"] >= 3
    assert data["loss"]["verdict"] == "equivalent"


def test_not_comparable_exits_1_and_names_both_values(unequal, capsys):
    assert main(["compare", *unequal, *ARMS]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith(
        "Not comparable: the arms differ in train.seq_len (baseline 4096, candidate 2048)"
    )
    assert "--allow train.seq_len" in out
    assert main(["compare", *unequal, *ARMS, "--allow", "train.seq_len"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--candidate", "kernel=nki_ropee"], "no run has kernel=nki_ropee; kernel is one of baseline, nki_rope"),
        (["--candidate", "kernel"], "a condition is written key=value, not 'kernel'"),
        (["--where", "path=hf_4b"], "no run has path=hf_4b; path is native_4b"),
        (["--runs", "nowhere"], "no directory nowhere: name the directory of runs with --runs DIR"),
        (["--experiment", "other"], "no experiment 'other' in"),
        (["--mlflow", "sqlite:///nowhere.db"], "no database nowhere.db"),
    ],
)
def test_wrong_usage_exits_2_with_one_line(arguments, message, sweep, capsys):
    assert main(["compare", *sweep, *ARMS, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("margin", ["0", "2", "-1%", "much"])
def test_a_margin_that_is_none(margin, sweep, capsys):
    with pytest.raises(SystemExit) as raised:
        main(["compare", *sweep, *ARMS, f"--margin={margin}"])
    assert raised.value.code == 2
    assert "expected a fraction like 0.01 or 1%" in capsys.readouterr().err


def test_margin_in_percent(sweep, capsys):
    assert main(["compare", "--json", *sweep, *ARMS, "--margin", "10%"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "equivalent"


def test_runs(sweep, capsys):
    assert main(["runs", *sweep]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 13
    assert lines[0].split()[:4] == ["run", "experiment", "path", "kernel"]
    assert main(["runs", *sweep, "--where", "kernel=nki_rope", "--json"]) == 0
    data = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {one["kernel"] for one in data} == {"nki_rope"}
    assert len(data) == 6


def test_report_writes_html_or_markdown(sweep, tmp_path, capsys):
    target = tmp_path / "new" / "r.html"
    assert main(["report", *sweep, *ARMS, "--no-mlflow", "--out", str(target)]) == 0
    assert target.read_text().startswith("<!doctype html>")
    capsys.readouterr()
    assert main(["report", *sweep, *ARMS, "--no-mlflow", "--format", "md"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("**nki_rope is faster than baseline")
    assert "| Steady throughput |" in out


def test_a_server_that_is_down_costs_a_warning_not_the_report(sweep, tmp_path, capsys):
    target = tmp_path / "r.html"
    server = "http://127.0.0.1:9"
    assert main(["report", *sweep, *ARMS, "--record", server, "--out", str(target)]) == 0
    assert target.exists()
    error = capsys.readouterr().err
    assert f"not recorded in MLflow ({server})" in error


def test_expect_holds_real_runs_against_a_known_truth(sweep, capsys):
    assert main(["selftest", *sweep, *ARMS, "--expect", "faster"]) == 0
    assert main(["selftest", *sweep, *ARMS, "--expect", "slower"]) == 1
    assert "expected slower, found faster: WRONG" in capsys.readouterr().out
    assert main(["selftest", *sweep, "--expect", "slower"]) == 2


def test_selftest_exits_1_when_a_verdict_is_wrong(capsys, monkeypatch):
    from dataclasses import replace

    from analysis import selftest

    first = selftest.CASES[2]
    monkeypatch.setattr(selftest, "CASES", (first,))
    assert main(["selftest"]) == 0
    monkeypatch.setattr(selftest, "CASES", (first, replace(first, throughput=("faster",))))
    assert main(["selftest"]) == 1
    out = capsys.readouterr().out
    assert "WRONG" in out
    assert "1 of 2 verdicts are right" in out


HEAVY = ("torch", "mlflow", "pandas", "matplotlib", "scipy.stats", "jinja2", "pyarrow")


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import analysis.__main__ as m; m.parser().format_help()", (*HEAVY, "numpy", "scipy")),
        ("import analysis.paired, analysis.curves", (*HEAVY, "harness", "yaml")),
        ("import analysis.commands", HEAVY),
    ],
    ids=["help", "statistics", "compare"],
)
def test_imports_stay_light(code, forbidden):
    script = f"{code}; import sys; print([name for name in {forbidden!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "--baseline", "kernel=baseline"], "the following arguments are required: --candidate"),
        (["compare", "--baseline", "a=1", "--candidate", "a=2", "--margin", "0"], "expected a fraction like 0.01"),
        (["compare", "--baseline", "a=1", "--candidate", "a=2", "--margin", "nan"], "expected a fraction like 0.01"),
        (["compar"], "invalid choice: 'compar'"),
        (["compare", "--baseline", "a=1", "--candidate", "a=2", "--what"], "unrecognized arguments: --what"),
    ],
)
def test_a_wrong_usage_is_told_in_two_lines(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in error
    assert len(error.splitlines()) == 2


def test_an_experiment_that_is_not_there(tmp_path, capsys):
    from analysis.synthetic import make_sweep, write_sweep

    write_sweep(make_sweep(pairs=1, steps=12), tmp_path)
    assert main(["runs", "--runs", str(tmp_path), "--experiment", "zzz"]) == 2
    assert "no experiment 'zzz'" in (error := capsys.readouterr().err)
    assert "there are: synthetic" in error
