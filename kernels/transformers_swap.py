"""The RoPE kernel inside Transformers models: each selected attention layer gets our op for its RoPE function.

Transformers' attention calls ``apply_rotary_pos_emb`` of its own module. A selected layer runs the same ``forward``
with that one name bound to our op; other layers, and other models in the process, are untouched. Angles come from the
model's rotary module, which has computed them for the positions of this batch, so any positions are right here.
"""

from __future__ import annotations

import logging
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from kernels import ops
from kernels.plan import KERNELS_ENV, LAYERS_ENV

FUNCTION = "apply_rotary_pos_emb"
NAME = "kernels.swaps.nki_rope"
"""The name that torchtitan's own override has: one kernel, one name in the log."""


def from_environment(parallelize_fn: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """``parallelize_fn`` of a model spec, swapping RoPE first if this run asks for nki_rope; else itself."""
    if "nki_rope" not in os.environ.get(KERNELS_ENV, "").split(","):
        return parallelize_fn
    selected = os.environ.get(LAYERS_ENV)
    layers = None if not selected else tuple(int(number) for number in selected.split(","))
    return with_rope(parallelize_fn, layers)


def with_rope(
    parallelize_fn: Callable[..., nn.Module], layers: tuple[int, ...] | None = None
) -> Callable[..., nn.Module]:
    """``parallelize_fn`` that swaps RoPE in ``layers`` (None: all) of the model before it is parallelized."""

    def parallelize(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        swap_rope(model, layers)
        return parallelize_fn(model, *args, **kwargs)

    return parallelize


def swap_rope(model: nn.Module, layers: tuple[int, ...] | None = None) -> int:
    """Put the kernel into the attention of ``layers`` (None: all); returns how many were swapped now.

    A layer that has the kernel already is left as it is.

    Raises:
        ValueError: the model has no attention that calls Transformers' RoPE function.
    """
    selected = [(name, m) for name, m in _attention_layers(model) if layers is None or m.layer_idx in layers]
    if not selected:
        wanted = "any layer" if layers is None else f"layers {', '.join(map(str, layers))}"
        raise ValueError(f"kernel=nki_rope: {type(model).__name__} calls {FUNCTION} in no attention of {wanted}")
    log, swapped = _log(), 0
    for name, module in selected:
        if not _has_our_rope(module):
            module.forward = types.MethodType(_with_our_rope(type(module).forward), module)
            log(f"[Override] {NAME}: model_spec.model.{name} {FUNCTION} -> pilot::rope")
            swapped += 1
    if swapped:
        log(f"Applied {swapped} override(s)")
    ops.request("nki_rope")
    return swapped


def rotate(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """What Transformers' function of the same arguments does, by ``pilot::rope``.

    Args:
        q, k: ``[batch, heads, seq, head_dim]``.
        cos, sin: ``[1 or batch, seq, head_dim]``.
        unsqueeze_dim: 1, where the heads are.
    """
    if unsqueeze_dim != 1:
        raise ValueError(f"nki_rope: unsqueeze_dim={unsqueeze_dim}: 1 was expected, heads before the sequence")
    cache = torch.cat((cos, sin), dim=-1)
    query, key = ops.rope(q.transpose(1, 2), k.transpose(1, 2), cache)
    return query.transpose(1, 2), key.transpose(1, 2)


def _log() -> Callable[[str], None]:
    """torchtitan's own logger, so that the lines stand where those of its overrides stand, whatever its level is."""
    try:
        from torchtitan.tools.logging import logger
    except ImportError:
        return logging.getLogger(__name__).info
    return logger.info


def _attention_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        forward = getattr(type(module), "forward", None)
        code = getattr(forward, "__code__", None)
        if hasattr(module, "layer_idx") and code is not None and FUNCTION in code.co_names:
            yield name, module


def _has_our_rope(module: nn.Module) -> bool:
    function = getattr(vars(module).get("forward"), "__func__", None)
    return function is not None and function.__globals__.get(FUNCTION) is rotate


def _with_our_rope(forward: Any) -> types.FunctionType:
    """A copy of a method that finds our function under the name of Transformers'."""
    names = forward.__globals__ | {FUNCTION: rotate}
    copy = types.FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    copy.__kwdefaults__ = forward.__kwdefaults__
    return copy
