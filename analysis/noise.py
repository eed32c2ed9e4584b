"""What identical arms show on this machine: the noise floor out of A/A runs, and why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from analysis.effects import measure, noise_floor
from analysis.gate import check_pairs, leave_out
from analysis.paired import MIN_PAIRS
from analysis.pairing import Pair, make_pairs, split_identical
from analysis.quantities import QUANTITIES
from analysis.runs import Run

MEASURE_IT = "measure it with python -m harness -m +experiment=aa"
SEED = ("train.seed",)
"""Says nothing about the machine: A/A runs may use another one than the baseline."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The floor of each quantity by name; empty where the A/A runs do not suffice."""

    floors: Mapping[str, float] = field(default_factory=dict)
    pairs: int = 0
    """Pairs of identical arms behind the floors."""
    missing: str = ""
    """Why there is no floor; empty where there is one, or where none is asked for."""


def measure_noise(candidates: Iterable[Run], pairs: Sequence[Pair], margin: float) -> Noise:
    """Noise floors from those of the A/A runs that equal the baseline of ``pairs`` in everything recorded."""
    found = list(candidates)
    if not found:
        return Noise(missing=f"there are no A/A runs; {MEASURE_IT}")
    count = f"{len(found)} A/A run{'s' * (len(found) != 1)}"
    usable, left_out = leave_out(found, "A/A")
    if not usable:
        return Noise(missing=f"{count} found, none usable ({left_out[0].run.run_id}: {left_out[0].reason})")
    reference = pairs[0].baseline
    gates = [check_pairs([Pair(label="", baseline=reference, candidate=run)], SEED) for run in usable]
    alike = [run for run, gate in zip(usable, gates, strict=True) if gate.comparable]
    if not alike:
        difference = next(gate.undeclared[0] for gate in gates if gate.undeclared)
        what = f"{difference.key}: {difference.candidate}, the baseline {difference.baseline}"
        return Noise(missing=f"{count} found, of another kind than the baseline ({what})")
    aa_pairs = make_pairs(*split_identical(alike)).pairs
    if len(aa_pairs) < MIN_PAIRS:
        made = f"{len(aa_pairs)} pair{'s' * (len(aa_pairs) != 1)} of identical arms"
        return Noise(
            pairs=len(aa_pairs),
            missing=f"{count} found, {len(alike)} usable here, which make {made}; at least {MIN_PAIRS} are needed "
            f"({MEASURE_IT} replicates={MIN_PAIRS + 1})",
        )
    floors = {quantity.name: noise_floor(measure(quantity, aa_pairs, margin=margin)) for quantity in QUANTITIES}
    return Noise(floors=floors, pairs=len(aa_pairs))
