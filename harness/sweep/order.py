"""In which order the pilots of a comparison run.

A machine drifts while it is measured: it warms up, its neighbours come and go. Run all of one arm first, and the drift
is taken for an effect. In blocks that hold every arm once, every other one reversed (A B B A), each arm has the same
mean place, so that a steady drift cancels.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

INTERLEAVED, BLOCKED = "interleaved", "blocked"
ORDERS = (INTERLEAVED, BLOCKED)


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One pilot's place: its arm, which repetition of the arm it is, its block, and its place in the whole order."""

    arm: int
    replicate: int
    block: int
    """Holds every arm once. In blocked order its pilots do not run next to each other."""
    order: int


def plan_slots(num_arms: int, replicates: int, *, order: str = INTERLEAVED, start: int = 0) -> list[Slot]:
    """The places of ``num_arms * replicates`` pilots, in the order in which they run.

    Args:
        order: ``interleaved`` runs block after block; of two consecutive blocks the second is the first reversed, and
            with more than two arms each such pair of blocks begins with the next arm, so that no arm always follows
            the same other one. ``blocked`` runs arm after arm, for kernels that disturb what runs right after them.
        start: which arm is first.

    Raises:
        ValueError: an unknown order, or no arm or replicate.
    """
    if order not in ORDERS:
        raise ValueError(f"sweep.order={order}: one of {', '.join(ORDERS)} was expected")
    if num_arms < 1 or replicates < 1:
        raise ValueError(f"replicates={replicates} of {num_arms} arms: at least 1 was expected")
    if order == BLOCKED:
        places = [(arm, block) for arm in _rotated(num_arms, start) for block in range(replicates)]
    else:
        places = [(arm, block) for block in range(replicates) for arm in block_order(num_arms, block, start=start)]
    return [Slot(arm=arm, replicate=block, block=block, order=place) for place, (arm, block) in enumerate(places)]


def block_order(num_arms: int, block: int, *, start: int = 0) -> list[int]:
    """The arms of one interleaved block in the order in which they run."""
    pair, second = divmod(block, 2)
    arms = _rotated(num_arms, start + (pair if num_arms > 2 else 0))
    return arms[::-1] if second else arms


def random_start(num_arms: int, seed: int) -> int:
    """Which arm is first, drawn from a seed."""
    return random.Random(seed).randrange(num_arms)


def arm_letter(arm: int) -> str:
    """A, B, ... Z, then A1, B1, ..."""
    cycle, letter = divmod(arm, 26)
    return chr(ord("A") + letter) + (str(cycle) if cycle else "")


def _rotated(num_arms: int, first: int) -> list[int]:
    return [(first + place) % num_arms for place in range(num_arms)]
