"""The kernels as overrides of torchtitan's modules: ``--override.imports kernels.swaps.nki_rope``, ``....nki_moe``.

Importing this module registers them; it imports torch and torchtitan. Which layers they apply to is taken from
PILOT_KERNEL_LAYERS (numbers with commas; unset: all), since the factory of an override is not told which layer it is
asked about. What a choice of kernels needs and must prove is worked out, without torch, in ``kernels.plan``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

from kernels import ops, override_registry
from kernels.plan import LAYERS_ENV

_registry = override_registry.find()  # first: what is imported next fails less clearly where there is none

from torchtitan.models.common import CosSinRoPE  # noqa: E402
from torchtitan.models.common.moe import GroupedExperts  # noqa: E402

try:
    import spmd_types as spmd
except ImportError:  # a torchtitan without sharding types checks none
    _rope = ops.rope
else:
    HEADS = {"dp": spmd.S(0), "cp": spmd.S(1), "tp": spmd.S(2)}
    """How torchtitan's sharding types describe ``[batch, seq, heads, head_dim]``; they know no rule for our op."""
    _rope = spmd.local_map(out_types=(HEADS, HEADS))(ops.rope)


class SelectedLayers(list[str]):
    """Name patterns of one module in the selected layers, worked out when torchtitan goes through them.

    In the trainer a name starts with ``model_spec.model.``, in a model by itself with ``layers.``: both match.
    """

    def __init__(self, module: str) -> None:
        super().__init__()
        self.module = module

    def __iter__(self) -> Iterator[str]:
        numbers = os.environ.get(LAYERS_ENV) or "*"
        return iter([f"*layers.{number}.{self.module}" for number in numbers.split(",")])


class NkiRoPE(CosSinRoPE):
    """torchtitan's RoPE computed by ``pilot::rope``: without a gather, for sequential positions only."""

    @dataclass(kw_only=True, slots=True)
    class Config(CosSinRoPE.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        ops.request("nki_rope")

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate ``[batch, seq, heads, head_dim]``.

        Raises:
            ValueError: positions that are not 0, 1, 2, ..., or a sequence length that the kernel does not take.
            NotImplementedError: tensors sharded by tensor parallelism.
        """
        if isinstance(query, DTensor):
            raise NotImplementedError(
                "nki_rope takes local tensors: train with tensor parallelism 1, or kernel=baseline"
            )
        ops.require_sequential(positions)
        cache = self.cache.to_local() if isinstance(self.cache, DTensor) else self.cache
        return _rope(query, key, cache)


class NkiGroupedExperts(GroupedExperts):
    """torchtitan's experts computed by ``pilot::experts``, in bfloat16 as the library computes them."""

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        ops.request("nki_moe")

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        """Experts for rows sorted by expert: ``[rows, dim]`` in and out."""
        weights = (_local(weight).bfloat16() for weight in (self.w1_EFD, self.w2_EDF, self.w3_EFD))
        return ops.experts(x_RD.bfloat16(), num_tokens_per_expert_E, *weights).type_as(x_RD)


def _local(weight: torch.Tensor) -> torch.Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight


@_registry.override(
    target=CosSinRoPE.Config,
    fqns=SelectedLayers("attention.rope"),
    description="RoPE by an NKI kernel, without a gather",
)
def nki_rope(config: CosSinRoPE.Config) -> NkiRoPE.Config:
    """The library's RoPE, computed by our kernel."""
    return _registry.derive(_exactly(config, CosSinRoPE.Config), NkiRoPE.Config)


@_registry.override(
    target=GroupedExperts.Config,
    fqns=SelectedLayers("moe.routed_experts.inner_experts"),
    description="SwiGLU experts by NKI kernels, dropless",
)
def nki_moe(config: GroupedExperts.Config) -> NkiGroupedExperts.Config:
    """The library's experts, computed by our kernels."""
    return _registry.derive(_exactly(config, GroupedExperts.Config), NkiGroupedExperts.Config)


def _exactly(config: object, kind: type) -> object:
    """Refuse a subclass: it has another contract than the one our kernel keeps."""
    if type(config) is not kind:
        raise ValueError(
            f"our kernel replaces {kind.__qualname__}, but this model uses {type(config).__qualname__}: kernel=baseline"
        )
    return config
