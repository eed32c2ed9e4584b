"""Which runs form a pair."""

from __future__ import annotations

import itertools

import pytest

from analysis.pairing import make_pairs, split_identical
from analysis.runs import Run


def run(name, *, block=None, replicate=None, order=None, started="", sweep="s", experiment="e"):
    config = {"block": block, "replicate": replicate, "order": order}
    return Run(
        run_id=name,
        source="",
        experiment=experiment,
        config=config,
        circumstances={},
        summary={},
        started=started,
        sweep=sweep,
    )


def names(pairing):
    return [(pair.baseline.run_id, pair.candidate.run_id) for pair in pairing.pairs]


def test_by_block():
    base = [run(f"a{i}", block=i, replicate=i, order=2 * i) for i in (2, 0, 1)]
    cand = [run(f"b{i}", block=i, replicate=i, order=2 * i + 1) for i in (1, 2, 0)]
    pairing = make_pairs(base, cand)
    assert names(pairing) == [("a0", "b0"), ("a1", "b1"), ("a2", "b2")]
    assert pairing.basis == "block"
    assert pairing.ordered
    assert [(pair.baseline_position, pair.candidate_position) for pair in pairing.pairs] == [(0, 1), (2, 3), (4, 5)]


def test_missing_blocks_and_unequal_counts_leave_runs_over_by_name():
    base = [run(f"a{i}", block=i, order=2 * i) for i in (0, 1, 3, 4)]
    cand = [run(f"b{i}", block=i, order=2 * i + 1) for i in (1, 2, 3)]
    pairing = make_pairs(base, cand)
    assert names(pairing) == [("a1", "b1"), ("a3", "b3")]
    assert sorted(one.run_id for one in pairing.unpaired) == ["a0", "a4", "b2"]


def test_several_runs_of_an_arm_in_a_block():
    """ABBA inside one block: replicates go together, what is left over in the order it ran."""
    base = [run("a0", block=0, replicate=0, order=0), run("a1", block=0, replicate=1, order=3)]
    cand = [run("b1", block=0, replicate=1, order=1), run("b0", block=0, replicate=0, order=2)]
    assert sorted(names(make_pairs(base, cand))) == [("a0", "b0"), ("a1", "b1")]
    extra = [*cand, run("b2", block=0, replicate=2, order=4)]
    pairing = make_pairs(base, extra)
    assert len(pairing.pairs) == 2
    assert [one.run_id for one in pairing.unpaired] == ["b2"]


def test_two_sweeps_with_the_same_block_numbers_stay_apart():
    base = [run("a1", block=0, sweep="one"), run("a2", block=0, sweep="two")]
    cand = [run("b2", block=0, sweep="two"), run("b1", block=0, sweep="one")]
    assert sorted(names(make_pairs(base, cand))) == [("a1", "b1"), ("a2", "b2")]


def test_arms_from_two_experiments_pair_by_block_number():
    base = [run(f"a{i}", block=i, sweep="old") for i in range(3)]
    cand = [run(f"b{i}", block=i, sweep="new") for i in range(3)]
    assert sorted(names(make_pairs(base, cand))) == [("a0", "b0"), ("a1", "b1"), ("a2", "b2")]


def test_without_blocks_by_replicate_then_by_start():
    base = [run(f"a{i}", replicate=i) for i in range(3)]
    cand = [run(f"b{i}", replicate=i) for i in (2, 1, 0)]
    pairing = make_pairs(base, cand)
    assert pairing.basis == "replicate"
    assert sorted(names(pairing)) == [("a0", "b0"), ("a1", "b1"), ("a2", "b2")]
    base = [run(f"a{i}", replicate=0, started=f"2026-10-20T08:0{2 * i}") for i in range(3)]
    cand = [run(f"b{i}", replicate=0, started=f"2026-10-20T08:0{2 * i + 1}") for i in (1, 0, 2)]
    pairing = make_pairs(base, cand)
    assert pairing.basis == "start order"
    assert names(pairing) == [("a0", "b0"), ("a1", "b1"), ("a2", "b2")]


def test_start_times_decide_over_planned_order():
    """A resumed sweep runs its missing job last: its planned place is not when it ran."""
    base = [run("a0", block=0, order=0, started="2026-10-20T09"), run("a1", block=1, order=3, started="2026-10-20T07")]
    cand = [run("b0", block=0, order=1, started="2026-10-20T08"), run("b1", block=1, order=2, started="2026-10-20T06")]
    pairs = {pair.label: (pair.baseline_position, pair.candidate_position) for pair in make_pairs(base, cand).pairs}
    assert pairs == {"block 0": (3, 2), "block 1": (1, 0)}


def test_unknown_order_is_said():
    base, cand = [run("a", block=0), run("c", block=1)], [run("b", block=0), run("d", block=1)]
    pairing = make_pairs(base, cand)
    assert not pairing.ordered
    assert pairing.pairs[0].baseline_position is None


@pytest.mark.parametrize("block", [True, False])
def test_identical_runs_are_split_in_turn(block):
    runs = [run(f"{i}", block=i // 2 if block else None, order=i) for i in range(8)]
    first, second = split_identical(runs)
    assert [one.run_id for one in first] == ["0", "3", "4", "7"]
    assert [one.run_id for one in second] == ["1", "2", "5", "6"]


def test_every_run_is_in_one_place():
    for count, other in itertools.product(range(4), repeat=2):
        base = [run(f"a{i}", block=i % 2) for i in range(count)]
        cand = [run(f"b{i}", block=i % 3) for i in range(other)]
        pairing = make_pairs(base, cand)
        found = [one.run_id for pair in pairing.pairs for one in pair.runs] + [one.run_id for one in pairing.unpaired]
        assert sorted(found) == sorted(one.run_id for one in [*base, *cand])
