"""The chain from run directories to verdicts, on known truths and on data that other people might bring."""

from __future__ import annotations

import json

import pytest

from analysis.comparison import compare
from analysis.selection import Selector
from analysis.synthetic import Machine
from analysis.text import to_data
from analysis.wording import headline, notes
from harness.rundir import find_runs
from tests.analysis.sweeps import (
    AA,
    REQUEST,
    candidates,
    compared,
    make_sweep,
    read,
    request,
)

STEPS = 12


def sweep(pairs=4, **arguments):
    return make_sweep(pairs=pairs, steps=STEPS, **arguments)


def test_faster_with_the_same_training(tmp_path):
    found = compared(sweep(pairs=6, effect=0.05, seed=1), tmp_path)
    assert found.verdict == "faster"
    assert found.loss.verdict == found.grad_norm.verdict == "equivalent"
    effect = found.effect("throughput")
    assert effect.low < 1.05 < effect.high
    assert found.effect("step_time").verdict == "faster"
    assert found.effect("step_time").ratio == pytest.approx(1 / effect.ratio, rel=1e-3)
    assert found.effect("memory").verdict == "equivalent"
    assert "nki_rope is faster than baseline by" in headline(found)


def test_memory_and_cost_have_words_of_their_own(tmp_path):
    runs = sweep()
    for run in candidates(runs):
        run.memory_gib = 16.0
    found = compared(runs, tmp_path)
    assert found.effect("memory").verdict == "higher"
    assert found.effect("memory").ratio == pytest.approx(16 / 14)


def test_swapping_the_arms_swaps_the_verdict(tmp_path):
    runs = read(sweep(pairs=6, effect=0.05, seed=1), tmp_path)
    there = compare(runs, REQUEST).effect("throughput")
    back = compare(runs, request(baseline=REQUEST.candidate, candidate=REQUEST.baseline)).effect("throughput")
    assert (there.verdict, back.verdict) == ("faster", "slower")
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.low == pytest.approx(1 / there.high)


# -- A/A --------------------------------------------------------------------------------------------------------------


def aa_sweep(sd, pairs=6, seed=5, **changes):
    runs = make_sweep(
        pairs=pairs,
        steps=STEPS,
        seed=seed,
        experiment="aa",
        kernels=("baseline", "baseline"),
        machine=Machine(run_sd=sd),
    )
    for run in runs:
        run.config["train"] |= changes
    return runs


def test_identical_selectors_are_an_a_a_comparison(tmp_path):
    found = compared(aa_sweep(0.003), tmp_path, request(baseline=AA, candidate=AA))
    assert len(found.pairs) == 6
    assert found.verdict in ("equivalent", "unresolved")
    order = [(pair.baseline_position < pair.candidate_position) for pair in found.pairs]
    assert order == [True, False] * 3


def test_a_a_runs_set_the_floor_of_every_margin(tmp_path):
    runs = [*sweep(pairs=6, effect=0.02, seed=1), *aa_sweep(0.03)]
    found = compared(runs, tmp_path)
    effect = found.effect("throughput")
    assert found.noise.pairs == 6
    assert effect.floor > 0.02
    assert effect.margin == effect.floor
    assert effect.verdict == "unresolved"  # identical arms would not be equivalent here either
    assert "A/A runs of this machine differ by up to" in effect.reason
    assert any("A/A noise floor from 6 pairs" in note for note in notes(found))


def test_without_a_a_runs_the_same_sweep_is_faster(tmp_path):
    """The control of the test above."""
    found = compared(sweep(pairs=6, effect=0.02, seed=1), tmp_path)
    assert found.verdict == "faster"
    assert any("there are no A/A runs" in note for note in notes(found))


def test_a_a_runs_of_something_else_are_not_used(tmp_path):
    found = compared([*sweep(pairs=6, effect=0.02, seed=1), *aa_sweep(0.03, seq_len=2048)], tmp_path)
    assert found.verdict == "faster"
    assert "train.seq_len" in found.noise.missing


# -- selection --------------------------------------------------------------------------------------------------------


def test_no_match_names_the_values_there_are(tmp_path):
    runs = read(sweep(pairs=1), tmp_path)
    with pytest.raises(ValueError, match="no run has kernel=nki_rop; kernel is one of baseline, nki_rope"):
        compare(runs, request(candidate=Selector.parse(["kernel=nki_rop"])))
    with pytest.raises(ValueError, match="path is native_4b"):
        compare(runs, request(where=Selector.parse(["path=hf_4b"])))
    with pytest.raises(ValueError, match="no run records a setting 'kernle'"):
        compare(runs, request(candidate=Selector.parse(["kernle=nki_rope"])))


def test_a_run_in_both_arms_is_refused(tmp_path):
    runs = read(sweep(pairs=2), tmp_path)
    with pytest.raises(ValueError, match="2 runs match both arms"):
        compare(runs, request(candidate=Selector.parse(["path=native_4b"]), baseline=REQUEST.baseline))


@pytest.mark.parametrize(
    "condition",
    [
        "train.steps=12",
        "train.learning_rate=3e-4",
        "train.compile=false",
        "platform.chip=null",
        "versions.torch=2.14.0",
    ],
)
def test_conditions_on_numbers_booleans_and_circumstances(condition, tmp_path):
    runs = read(sweep(pairs=1), tmp_path)
    if condition == "platform.chip=null":
        runs[0].config["platform.chip"] = None
        assert Selector.parse([condition]).choose(runs) == runs[:1]
    else:
        assert len(Selector.parse([condition]).choose(runs)) == 2


@pytest.mark.parametrize("text", ["kernel", "kernel=", "=x", ""])
def test_a_condition_that_is_none(text):
    with pytest.raises(ValueError, match="is written key=value"):
        Selector.parse([text])


def test_data_is_strict_json(tmp_path):
    data = to_data(compared(sweep(pairs=1), tmp_path))
    text = json.dumps(data, allow_nan=False)
    assert json.loads(text)["quantities"]["throughput"]["low"] == "nan"
    assert data["verdict"] == "unresolved"


def test_verdicts_do_not_depend_on_the_order_of_reading(tmp_path):
    runs = read(sweep(pairs=6, effect=0.05, seed=1), tmp_path)
    assert to_data(compare(runs, REQUEST)) == to_data(compare(runs[::-1], REQUEST))


def test_an_interrupted_and_resumed_sweep_gives_the_same_table(tmp_path):
    """The failed attempt of a run stays in the directory beside its repetition."""
    runs = sweep(pairs=4, effect=0.05, seed=1)
    whole = to_data(compared(runs, tmp_path / "whole"))
    import copy

    attempt = copy.deepcopy(runs[3])
    attempt.run_id += "-interrupted"
    attempt.state, attempt.step_s, attempt.reason = "killed", attempt.step_s[:5], "SIGINT"
    resumed = to_data(compared([*runs, attempt], tmp_path / "resumed"))
    assert [item["run"] for item in resumed.pop("left_out")] == [attempt.run_id]
    whole.pop("left_out")
    assert resumed == whole
    assert len(find_runs(tmp_path / "resumed")) == 9
