"""What is known about a run besides its step rows: given by the pilot, or read from the events of a foreign log."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from harness.phases import PhasesConfig
from harness.shapes import ModelShape

if TYPE_CHECKING:
    from harness.logs import Event


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is known about a run besides its log. Everything is optional, so that any log can be summarised."""

    phases: PhasesConfig = field(default_factory=PhasesConfig)
    ranks: int | None = None
    chips: int | None = None
    nodes: int | None = None
    tokens_per_step: float | None = None
    """Tokens of one optimizer step over all ranks."""
    seq_len: int | None = None
    shape: ModelShape | None = None
    """The model that was built; None for a foreign log, whose MFU is then kept as reported only."""
    device: str = ""
    """Name of the chip in the table of peaks, or what the machine calls its device; empty: what the log says."""
    lnc: int | None = None
    dtype: str | None = None
    """Type of the matrix products."""
    peak_flops_per_rank: float | None = None
    peak_source: str = ""
    price_per_hour: float | None = None
    """Price of everything the run occupied, per hour, in the user's currency."""
    price_date: str | None = None
    wall_s: float | None = None
    """Seconds from launch to the end of the processes."""
    compile_cache: str | None = None
    """cold or warm, where the cache directory tells."""
    rehearsal: bool = False

    @property
    def tokens_per_rank_step(self) -> float | None:
        """Tokens of one optimizer step per rank, which is what torchtitan's ``tps`` counts."""
        return self.tokens_per_step / self.ranks if self.tokens_per_step and self.ranks else None


def complete(facts: RunFacts, events: Sequence[Event]) -> RunFacts:
    """``facts`` with its gaps filled from what the log says about mesh, batch, device and compile cache."""
    latest = {event.kind: event.data for event in events}
    batch = {**latest.get("training_start", {}), **latest.get("trainer", {})}
    seq_len = facts.seq_len or batch.get("sequence_length")
    tokens = facts.tokens_per_step or batch.get("tokens_per_step")
    if not tokens and batch.get("global_batch") and seq_len:
        tokens = batch["global_batch"] * seq_len
    cached = "warm" if "neff_cached" in latest else None
    return replace(
        facts,
        ranks=facts.ranks or ranks_of_mesh(latest.get("mesh", {})),
        seq_len=seq_len,
        tokens_per_step=tokens,
        device=facts.device or str(latest.get("device_capacity", {}).get("device", "")),
        compile_cache=facts.compile_cache or cached,
    )


def ranks_of_mesh(mesh: dict[str, object]) -> int | None:
    """Number of ranks from the log's line about the device mesh, in either of its forms; None if it does not tell.

    Expert parallelism takes its ranks from the others and multiplies nothing.
    """
    if "sizes" in mesh:
        sizes = [int(size) for size in re.findall(r"\d+", str(mesh["sizes"]))]
    else:
        found = dict(re.findall(r"(\w+)=(-?\d+)", str(mesh.get("parallelism", ""))))
        sizes = [int(found[name]) for name in ("pp", "dp_replicate", "dp_shard", "cp", "tp") if name in found]
    return math.prod(sizes) if sizes and min(sizes) > 0 else None
