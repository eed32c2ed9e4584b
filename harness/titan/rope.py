"""RoPE tables: initialise those that the library leaves as allocated, and hold all of them against arithmetic.

A model is built on the meta device and then given memory; buffers that no checkpoint holds must be computed again.
torchtitan 0.3.0 does so for its own models. For the Transformers backend it looks for an attribute that Transformers 5
no longer sets, so ``inv_freq`` stays whatever the memory held, and training looks healthy with meaningless positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from harness.shapes import ModelShape

TOLERANCE = 1e-3
"""Of cosines and sines up to the last position: float32 angles of some thousand radians are that coarse."""


@dataclass(frozen=True, kw_only=True)
class RopeState:
    """RoPE tables of one model after initialisation."""

    modules: int
    restored: int
    """Modules whose table the library had left wrong, and that were initialised here."""
    max_abs_diff: float
    """Largest difference from tables computed from theta and head_dim alone; infinite with a NaN or without a table."""

    @property
    def passed(self) -> bool:
        return self.modules > 0 and self.max_abs_diff <= TOLERANCE


def settle(model: nn.Module, shape: ModelShape) -> RopeState:
    """Restore what the library left uninitialised, then measure every RoPE table of ``model``."""
    restored = restore(model)
    errors = list(_errors(model, shape))
    return RopeState(modules=len(errors), restored=restored, max_abs_diff=max(errors, default=float("inf")))


@torch.no_grad()
def restore(model: nn.Module) -> int:
    """Recompute ``inv_freq`` of Transformers' rotary modules where it is wrong; the number of modules that were."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    wrong = 0
    for module in _rotary_modules(model):
        kind = getattr(module, "rope_type", "default")
        initialise = ROPE_INIT_FUNCTIONS.get(kind) or module.compute_default_rope_parameters
        fresh, module.attention_scaling = initialise(module.config, torch.device("cpu"))
        buffers = [_local(module.inv_freq), _local(getattr(module, "original_inv_freq", module.inv_freq))]
        wrong += max(max_difference(buffer, fresh) for buffer in buffers) > 0
        for buffer in buffers:
            buffer.copy_(fresh)
    return wrong


def inverse_frequencies(head_dim: int, theta: float) -> torch.Tensor:
    """Angle per position in float32, [head_dim / 2]: theta ** (-2 i / head_dim) (arXiv 2104.09864, eq. 15)."""
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


def table(model: nn.Module) -> dict[str, torch.Tensor]:
    """The table that the model's first layer uses, as it is, on the CPU.

    ``inverse_frequencies`` [head_dim / 2] of Transformers' modules, ``cosine_sine`` [positions, 2 head_dim] of the
    native model; empty where none is found.
    """
    for module in model.modules():
        if isinstance(frequencies := getattr(module, "inv_freq", None), torch.Tensor):
            return {"inverse_frequencies": _local(frequencies).detach().float().cpu()}
        cache = getattr(module, "cache", None)
        if isinstance(cache, torch.Tensor) and cache.ndim == 2:
            return {"cosine_sine": _local(cache).detach().float().cpu()}
    return {}


def max_difference(left: torch.Tensor, right: torch.Tensor) -> float:
    """Largest absolute difference, infinite where either holds a NaN."""
    difference = (left.detach().float().cpu() - right.detach().float().cpu()).abs()
    return difference.nan_to_num(nan=float("inf"), posinf=float("inf")).max().item()


def _errors(model: nn.Module, shape: ModelShape) -> Iterator[float]:
    """Largest error of each table: cosines and sines of the native model, frequencies of Transformers' modules."""
    frequencies = inverse_frequencies(shape.head_dim, shape.rope_theta)
    for module in _rotary_modules(model):
        yield max_difference(_local(module.inv_freq), frequencies)
    tables: dict[int, torch.Tensor] = {}
    for module in model.modules():
        cache = getattr(module, "cache", None)
        if isinstance(cache, torch.Tensor) and cache.shape[-1] == 2 * shape.head_dim:
            if len(cache) not in tables:
                angles = torch.outer(torch.arange(len(cache), dtype=torch.float32), frequencies).repeat(1, 2)
                tables[len(cache)] = torch.cat((angles.cos(), angles.sin()), dim=-1)
            yield max_difference(_local(cache), tables[len(cache)])


def _rotary_modules(model: nn.Module) -> Iterator[nn.Module]:
    return (module for module in model.modules() if isinstance(getattr(module, "inv_freq", None), torch.Tensor))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The rank's own copy of a replicated tensor."""
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
