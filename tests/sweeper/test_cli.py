"""Sweeps through Hydra, as typed: dry runs, refusals, pilots that are refused late; nothing is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.rundir import RunDir, claimed
from tests.sweeper.conftest import rows


def test_experiment_plans_four_pairs_with_or_without_m(harness: Any) -> None:
    code, out, err = harness("-m", "+experiment=rope_ab", "dry_run=true")
    assert (code, err) == (0, "")
    assert "2 arms x 4 = 8 pilots, interleaved" in out
    assert "order  A B | B A | A B | B A" in out
    assert [row[2][0] for row in rows(out)] == list("ABBAABBA")
    assert {(row[2], row[4]) for row in rows(out)} == {
        ("A kernel=baseline", "baseline"),
        ("B kernel=nki_rope", "nki_rope"),
    }
    again = harness("+experiment=rope_ab", "dry_run=true")
    assert again == (code, out, err)


EXPERIMENTS = {
    "moe_ab": ("kernel=baseline", "kernel=nki_moe"),
    "aa": ("kernel=baseline", "kernel=baseline"),
    "paths": ("path=hf_4b", "path=native_4b", "path=moe_nki"),
}


@pytest.mark.parametrize(("name", "arms"), EXPERIMENTS.items(), ids=EXPERIMENTS.keys())
def test_the_other_experiments(name: str, arms: tuple[str, ...], harness: Any) -> None:
    code, out, err = harness(f"+experiment={name}", "dry_run=true", "replicates=2")
    assert (code, err) == (0, "")
    letters = "ABC"[: len(arms)]
    expected = [f"{letter} {arm}" for letter, arm in zip(letters, arms, strict=True)]
    assert [row[2] for row in rows(out)] == expected + expected[::-1]


def test_any_sweep_with_replicates_is_interleaved(harness: Any, tmp_path: Path) -> None:
    swept = ("train.seed=1,2", "kernel=baseline,nki_rope")
    code, out, _ = harness("+path=native_4b", *swept, "replicates=2", "dry_run=true")
    assert code == 0
    assert "4 arms x 2 = 8 pilots" in out
    assert [row[2] for row in rows(out)][:4] == [
        "A train.seed=1 kernel=baseline",
        "B train.seed=1 kernel=nki_rope",
        "C train.seed=2 kernel=baseline",
        "D train.seed=2 kernel=nki_rope",
    ]
    assert not (tmp_path / "runs").exists()


def test_order_start_and_seed_can_be_chosen(harness: Any) -> None:
    chosen = ("sweep.order=blocked", "sweep.start_seed=2", "sweep.vary_seed=true", "replicates=2")
    code, out, _ = harness("+experiment=rope_ab", *chosen, "dry_run=true")
    assert code == 0
    assert "one arm after the other, a seed per replicate" in out
    assert [row[2][0] for row in rows(out)] == list("AABB")
    assert [row[9] for row in rows(out)] == ["1", "2", "1", "2"]
    _, out, _ = harness("+experiment=rope_ab", "sweep.start_seed=0", "replicates=2", "dry_run=true")
    assert [row[2][0] for row in rows(out)] == list("BAAB")
    assert [row[9] for row in rows(out)] == ["1", "1", "1", "1"]


def test_the_command_line_comes_before_the_experiment(harness: Any) -> None:
    code, out, _ = harness("+experiment=rope_ab", "kernel=nki_rope,baseline", "train.steps=7", "dry_run=true")
    assert code == 0
    assert [row[4] for row in rows(out)][:2] == ["nki_rope", "baseline"]
    assert {row[7] for row in rows(out)} == {"7"}


WRONG = {
    "key": (["+experiment=rope_ab", "sweep.mixed=true"], "there is no key sweep.mixed: sweep has replicates, order"),
    "number": (["+experiment=rope_ab", "replicates=two"], "replicates=two"),
    "order": (["+experiment=rope_ab", "sweep.order=x"], "sweep.order=x: one of interleaved, blocked was expected"),
    "place": (["+experiment=rope_ab", "block=1"], "block= is set by the sweep"),
    "two": (["+experiment=rope_ab,aa"], "one experiment at a time"),
    "unknown": (["+experiment=rope"], "experiment=rope does not exist: choose experiment=aa|moe_ab|paths|rope_ab"),
    "arm": (["+path=native_4b", "train.steps=3,0", "replicates=2"], "train.steps=0: at least 1 was expected"),
    "kernel": (["+experiment=moe_ab", "path=native_4b"], "nki_moe has no place in this model"),
    "range": (["+path=native_4b", "train.seed=interval(1,2)", "replicates=2"], "a list of values was expected"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_sweeps_are_refused_before_the_first_pilot(
    arguments: list[str], message: str, harness: Any, tmp_path: Path
) -> None:
    code, _, err = harness(*arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) <= 2
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_a_refused_pilot_leaves_the_others_going(harness: Any, tmp_path: Path) -> None:
    """data=local is looked for when a pilot prepares, which is after the sweep was planned."""
    code, out, err = harness("+path=native_4b", "train.seed=1,2", "replicates=2", "data=local", "data.path=/nowhere")
    assert code == 1
    assert err.count("no such file or directory: /nowhere") == 4
    assert [row[3].split()[0] for row in rows(out)] == ["refused"] * 4
    assert "[4/4] block 1, arm A: train.seed=1" in out
    assert "A  train.seed=1: 0 of 2 finished" in out


def test_a_second_sweep_in_the_same_directory_is_refused(harness: Any, tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "rope_ab"
    directory.mkdir(parents=True)
    with claimed(RunDir(directory), "sweep") as alone:
        assert alone
        code, _, err = harness("+experiment=rope_ab")
    assert code == 2
    assert "another sweep is running in" in err
