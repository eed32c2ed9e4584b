"""How the ranks of a job are laid out: the product of the parallel degrees has to be the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

FLAGS = {
    "parallelism.pipeline_parallel_degree": "pp",
    "parallelism.data_parallel_replicate_degree": "dp_replicate",
    "parallelism.data_parallel_shard_degree": "dp_shard",
    "parallelism.context_parallel_degree": "cp",
    "parallelism.tensor_parallel_degree": "tp",
    "parallelism.expert_parallel_degree": "ep",
}
"""torchtitan's options (ParallelismConfig) and the names by which its log prints the mesh."""


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Degrees of parallelism. Expert parallelism takes its ranks from the others and multiplies nothing."""

    dp_shard: int
    dp_replicate: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1

    @property
    def ranks(self) -> int:
        return math.prod((self.pp, self.dp_replicate, self.dp_shard, self.cp, self.tp))

    @property
    def data_ranks(self) -> int:
        """Ranks that read different sequences."""
        return self.dp_replicate * self.dp_shard

    def __str__(self) -> str:
        names = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
        shown = [f"{name}={getattr(self, name)}" for name in names if getattr(self, name) != 1 or name == "dp_shard"]
        return f"[{', '.join(shown)}]"


def plan_mesh(ranks: int, flags: Sequence[str]) -> Mesh:
    """FSDP over all ranks, as the paths have it, with what ``train.flags`` says instead.

    Raises:
        ValueError: degrees that are no positive whole numbers, or whose product is not the number of ranks.
    """
    degrees = {"dp_shard": ranks}
    for flag, after in zip(flags, [*flags[1:], ""], strict=False):
        name, equals, value = flag.lstrip("-").partition("=")
        if (key := FLAGS.get(name)) is None:
            continue
        value = value if equals else after
        allowed = "a whole number of at least 1" + (", or -1," if key == "dp_shard" else "")
        if not value.lstrip("-").isdigit() or (int(value) < 1 and (key, value) != ("dp_shard", "-1")):
            raise ValueError(f"--{name} {value}: {allowed} was expected")
        degrees[key] = int(value)
    if degrees["dp_shard"] == -1:
        others = math.prod(degree for key, degree in degrees.items() if key not in ("dp_shard", "ep"))
        degrees["dp_shard"] = max(1, ranks // others)
    mesh = Mesh(**degrees)
    if mesh.ranks != ranks:
        raise ValueError(f"mesh {mesh} has {mesh.ranks} ranks, the job has {ranks}: their product has to be {ranks}")
    if mesh.ranks // mesh.pp // mesh.dp_replicate % mesh.ep:
        raise ValueError(f"mesh {mesh}: ep={mesh.ep} does not divide the {mesh.ranks} ranks that experts go over")
    return mesh
