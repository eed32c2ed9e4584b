"""In which order arms run, as values."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harness.sweep.order import arm_letter, block_order, plan_slots, random_start


def letters(num_arms: int, replicates: int, **how: object) -> str:
    return "".join(arm_letter(slot.arm) for slot in plan_slots(num_arms, replicates, **how))


ORDERS = {
    "ABBA": ((2, 4, {}), "ABBAABBA"),
    "odd": ((2, 3, {}), "ABBAAB"),
    "start": ((2, 4, {"start": 1}), "BAABBAAB"),
    "one arm": ((1, 3, {}), "AAA"),
    "three arms": ((3, 6, {}), "ABCCBA" + "BCAACB" + "CABBAC"),
    "four arms": ((4, 2, {}), "ABCDDCBA"),
    "three, start": ((3, 2, {"start": 2}), "CABBAC"),
    "blocked": ((2, 3, {"order": "blocked"}), "AAABBB"),
    "blocked, start": ((2, 3, {"order": "blocked", "start": 1}), "BBBAAA"),
}


@pytest.mark.parametrize(("given", "expected"), ORDERS.values(), ids=ORDERS.keys())
def test_order(given: tuple[int, int, dict], expected: str) -> None:
    num_arms, replicates, how = given
    assert letters(num_arms, replicates, **how) == expected


@pytest.mark.parametrize("how", [{}, {"start": 1}, {"order": "blocked"}])
@pytest.mark.parametrize("num_arms", [1, 2, 3, 5])
def test_every_block_holds_every_arm_once_and_order_counts_up(num_arms: int, how: dict) -> None:
    slots = plan_slots(num_arms, 6, **how)
    assert [slot.order for slot in slots] == list(range(6 * num_arms))
    for block in range(6):
        assert sorted(slot.arm for slot in slots if slot.block == block) == list(range(num_arms))
    for arm in range(num_arms):
        assert sorted(slot.replicate for slot in slots if slot.arm == arm) == list(range(6))


def drift_seen(slots: list, num_arms: int) -> float:
    """Largest difference of two arms' mean places: what a steady drift would add to their difference."""
    means = [sum(slot.order for slot in slots if slot.arm == arm) for arm in range(num_arms)]
    return (max(means) - min(means)) / (len(slots) / num_arms)


@pytest.mark.parametrize("num_arms", [2, 3, 4, 7])
def test_a_steady_drift_cancels_when_interleaved(num_arms: int) -> None:
    assert drift_seen(plan_slots(num_arms, 4), num_arms) == 0.0
    assert drift_seen(plan_slots(num_arms, 4, order="blocked"), num_arms) == 4 * (num_arms - 1)  # the control


def test_with_more_than_two_arms_none_always_follows_the_same_other() -> None:
    arms = [slot.arm for slot in plan_slots(3, 6)]
    followed = {arm: {before for before, after in pairwise(arms) if after == arm} - {arm} for arm in range(3)}
    assert followed == {0: {1, 2}, 1: {0, 2}, 2: {0, 1}}


def test_random_start_follows_its_seed_and_reaches_every_arm() -> None:
    starts = [random_start(3, seed) for seed in range(50)]
    assert starts == [random_start(3, seed) for seed in range(50)]
    assert set(starts) == {0, 1, 2}


def test_blocks_stay_when_replicates_are_added() -> None:
    assert plan_slots(3, 8)[:12] == plan_slots(3, 4)
    assert block_order(2, 0) == [0, 1]
    assert block_order(2, 1) == [1, 0]


@pytest.mark.parametrize(
    ("num_arms", "replicates", "order"), [(2, 0, "interleaved"), (0, 1, "blocked"), (2, 2, "abab")]
)
def test_impossible_orders_are_refused(num_arms: int, replicates: int, order: str) -> None:
    with pytest.raises(ValueError, match="was expected"):
        plan_slots(num_arms, replicates, order=order)
