"""What a training path is: the published model, what the path makes of it, and how it is rehearsed on CPU (no torch).

The dataclasses mirror ``conf/path/*.yaml`` and can be used as Hydra structured configs. A path's model comes from three
sources that must stay apart: the values its authors published, the changes that the path declares, and, in a rehearsal
on CPU, narrower widths. Depth, number of experts and top_k are never changed by a rehearsal, so that checks per layer
and per expert mean the same thing.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.shapes import ModelShape

CONF_DIR = Path(__file__).resolve().parent.parent / "conf" / "path"
BACKENDS = ("native", "transformers")


@dataclass
class Published:
    """Configuration values as the model's authors published them."""

    source: str = ""
    """Where the values were published: the model's config.json."""
    num_layers: int = 0
    hidden: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    """Intermediate width of the dense feed-forward; 0 where every layer is a mixture of experts."""
    vocab: int = 0
    tied: bool = False
    """Whether the output head shares the embedding's weight."""
    num_experts: int = 0
    top_k: int = 0
    moe_ffn: int = 0
    """Intermediate width of one expert."""
    rope_theta: float = 1e6
    norm_eps: float = 1e-6
    max_positions: int = 40960


@dataclass
class Shrink:
    """Depth and experts that the path itself changes, at every scale; null keeps the published value."""

    num_layers: int | None = None
    num_experts: int | None = None
    top_k: int | None = None


@dataclass
class Promise:
    """What the path says it trains at full scale, written down by hand and held against every build."""

    num_layers: int = 0
    hidden: int = 0
    num_experts: int = 0
    top_k: int = 0
    tied: bool = False
    total_params: int = 0
    """Parameters, a tied embedding counted once."""
    active_params: int = 0
    """Parameters that one token visits: all but the experts it is not routed to."""


@dataclass
class FullScale:
    """How the path trains on an accelerator."""

    seq_len: int = 4096
    """Tokens per sequence."""
    local_batch_size: int = 1
    """Sequences per data-parallel rank and micro step."""
    global_batch_size: int = 64
    """Sequences per optimizer step over all ranks."""
    learning_rate: float = 3e-4
    warmup_steps: int = 2
    mixed_precision_param: str = "bfloat16"
    """Type of the parameters in forward and backward under FSDP: bfloat16 or float32."""


@dataclass
class Rehearsal:
    """How the path trains on CPU: the same depth and experts, narrower widths, tens of seconds instead of hours."""

    hidden: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 160
    moe_ffn: int = 0
    vocab: int = 2048
    """Also the number of entries of the tokenizer that is trained for a rehearsal."""
    seq_len: int = 256
    """A multiple of 128 x 2, so that kernels for two physical cores per logical core accept it."""
    local_batch_size: int = 2
    ranks: int = 2
    multi_rank_min_torch: str = ""
    """Oldest torch release with which more than one CPU rank works, e.g. "2.14"; empty if all do."""
    learning_rate: float = 6e-3
    warmup_steps: int = 2
    mixed_precision_param: str = "float32"


@dataclass
class PathConfig:
    """One training path."""

    name: str = ""
    """Name of the path and of its function in harness/titan/config_registry.py."""
    summary: str = ""
    """One line for a person."""
    backend: str = "native"
    """Whose modeling code: native (torchtitan's own Qwen3) or transformers (torchtitan's Transformers backend)."""
    builder: str = ""
    """The library's configuration function that the path starts from; its name need not say what is trained."""
    hf_model: str = ""
    """Hub id of the published weights and tokenizer, or a local directory of them."""
    published: Published = field(default_factory=Published)
    shrink: Shrink = field(default_factory=Shrink)
    promise: Promise = field(default_factory=Promise)
    full: FullScale = field(default_factory=FullScale)
    rehearsal: Rehearsal = field(default_factory=Rehearsal)

    def full_shape(self) -> ModelShape:
        """Shape at full scale: the published values with the path's own changes."""
        values = {f.name: getattr(self.published, f.name) for f in dataclasses.fields(ModelShape)}
        changes = {f.name: getattr(self.shrink, f.name) for f in dataclasses.fields(Shrink)}
        return ModelShape(**(values | {name: value for name, value in changes.items() if value is not None}))

    def rehearsal_shape(self, *, num_layers: int | None = None) -> ModelShape:
        """Shape of the rehearsal; ``num_layers`` makes it shallower still, for tests."""
        widths = ("hidden", "num_heads", "num_kv_heads", "head_dim", "ffn", "moe_ffn", "vocab")
        shape = dataclasses.replace(self.full_shape(), **{name: getattr(self.rehearsal, name) for name in widths})
        return shape if num_layers is None else dataclasses.replace(shape, num_layers=num_layers)

    def rehearsal_ranks(self, torch_version: str | None) -> int:
        """CPU ranks to use with this torch release; ``None`` (torch not installed) counts as new enough."""
        needed = _release(self.rehearsal.multi_rank_min_torch)
        if torch_version is None or _release(torch_version) >= needed:
            return self.rehearsal.ranks
        return 1


def _release(version: str) -> tuple[int, ...]:
    """Leading numbers of a version: "2.13.0+cpu" gives (2, 13)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def path_names() -> list[str]:
    """Names of the paths that conf/ describes, sorted."""
    return sorted(file.stem for file in CONF_DIR.glob("*.yaml"))


def load_path(name: str) -> PathConfig:
    """Read conf/path/<name>.yaml.

    Raises:
        ValueError: no such path, or a key or value that does not fit; the message names the file and the key.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    file = CONF_DIR / f"{name}.yaml"
    if not file.is_file():
        raise ValueError(f"no path named {name!r}; choose one of {', '.join(path_names())}")
    try:
        merged: Any = OmegaConf.merge(OmegaConf.structured(PathConfig), OmegaConf.load(file))
        path = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ValueError(f"{file.name}: {str(error).splitlines()[0]}") from error
    assert isinstance(path, PathConfig)
    if path.backend not in BACKENDS:
        raise ValueError(f"{file.name}: backend is {path.backend!r}, expected one of {', '.join(BACKENDS)}")
    return path
