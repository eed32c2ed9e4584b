"""The torch ops behind the kernels: checks, fake implementations, autograd, and the backend that does the work.

    pilot::rope, pilot::rope_backward          rotary position embedding, torchtitan's layout
    pilot::experts, pilot::experts_backward    SwiGLU experts over tokens sorted by expert

Call :func:`rope` and :func:`experts`: they check shapes first, on every backend alike, so that a rehearsal refuses
what the device would refuse. Which backend runs is read when an op runs (``use_backend``). Whether ops are registered
through ``torch_neuronx.nki_op`` is settled when this module is imported: on Neuron, choose the backend before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels import nki_api
from kernels.backend import calls, execution, report, report_lines, request, reset_counts, use_backend
from kernels.limits import check_head_dim, check_sequence_length
from kernels.moe import launch as moe
from kernels.positions import require_sequential
from kernels.rope import launch as rotary

__all__ = [
    "calls",
    "execution",
    "experts",
    "report",
    "report_lines",
    "request",
    "require_sequential",
    "reset_counts",
    "rope",
    "use_backend",
]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_register = nki_api.op_registrar()


# -- rotary position embedding ------------------------------------------------------------------------------------


def rope(query: Tensor, key: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate query and key by their place in the sequence.

    Args:
        query, key: ``[batch, seq, heads, head_dim]``, each with its own number of heads. ``seq`` is a multiple of
            128 x LNC.
        cache: ``[rows, 2 * head_dim]``, or ``[batch, rows, 2 * head_dim]`` where batches differ: cosines, then sines,
            one row for each of at least ``seq`` positions, in order. Receives no gradient.

    Returns:
        Rotated query and key, in their shapes and dtypes, contiguous; computed in float32 and rounded once.

    Raises:
        ValueError: shapes, dtypes or a sequence length that the kernel does not take.
    """
    _check_rope(query, key, cache)
    return torch.ops.pilot.rope(query, key, cache)


@_register("pilot::rope", mutates_args=())
def _rope(query: Tensor, key: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
    return rotary.forward(query, key, cache)


@_register("pilot::rope_backward", mutates_args=())
def _rope_backward(query_grad: Tensor, key_grad: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
    return rotary.backward(query_grad, key_grad, cache)


@_rope.register_fake
@_rope_backward.register_fake
def _(query: Tensor, key: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape)


def _save_cache(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Any) -> None:
    ctx.save_for_backward(inputs[2])


def _rope_gradients(ctx: Any, query_grad: Tensor, key_grad: Tensor) -> tuple[Tensor, Tensor, None]:
    (cache,) = ctx.saved_tensors
    return (*torch.ops.pilot.rope_backward(query_grad, key_grad, cache), None)


_rope.register_autograd(_rope_gradients, setup_context=_save_cache)


def _check_rope(query: Tensor, key: Tensor, cache: Tensor) -> None:
    if query.ndim != 4 or key.ndim != 4:
        raise ValueError(f"nki_rope: query {_shape(query)}, key {_shape(key)}: [batch, seq, heads, head_dim] expected")
    batch, seq, _, head_dim = query.shape
    if (key.shape[0], key.shape[1], key.shape[3]) != (batch, seq, head_dim):
        raise ValueError(f"nki_rope: key {_shape(key)} does not go with query {_shape(query)}: only heads may differ")
    if query.dtype not in DTYPES or key.dtype != query.dtype:
        raise ValueError(f"nki_rope: query is {query.dtype}, key {key.dtype}: the same float32, bfloat16 or float16")
    check_head_dim(head_dim)
    check_sequence_length(seq, execution().lnc)
    shared = cache.ndim == 2 or (cache.ndim == 3 and cache.shape[0] in (1, batch))
    if not shared or cache.shape[-1] != 2 * head_dim or cache.shape[-2] < seq:
        raise ValueError(
            f"nki_rope: cache {_shape(cache)}: [at least {seq}, {2 * head_dim}] expected, "
            f"with or without a batch of {batch} in front"
        )


# -- experts ------------------------------------------------------------------------------------------------------


def experts(x: Tensor, tokens_per_expert: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
    """SwiGLU experts, dropless: ``w2 (silu(w1 x) * (w3 x))`` of the expert that each row belongs to.

    Args:
        x: ``[rows, dim]``, sorted by expert.
        tokens_per_expert: integers ``[experts]``: how many rows each has; zeros are allowed.
        w1, w3: ``[experts, ffn, dim]``; w2: ``[experts, dim, ffn]``; all of one dtype, that of ``x``.

    Returns:
        ``[rows, dim]``. Products are summed in float32 and rounded once; rows after the last expert's are zero.

    Raises:
        ValueError: shapes or dtypes that do not go together.
    """
    _check_experts(x, tokens_per_expert, w1, w2, w3)
    return torch.ops.pilot.experts(x, tokens_per_expert, w1, w2, w3)[0]


@_register("pilot::experts", mutates_args=())
def _experts(x: Tensor, tokens_per_expert: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return moe.forward(x, tokens_per_expert, w1, w2, w3)


@_register("pilot::experts_backward", mutates_args=())
def _experts_backward(
    grad: Tensor, x: Tensor, tokens_per_expert: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, gate: Tensor, up: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return moe.backward(grad, x, tokens_per_expert, w1, w2, w3, gate, up)


@_experts.register_fake
def _(x: Tensor, tokens_per_expert: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hidden = (x.shape[0], w1.shape[1])
    return x.new_empty(x.shape), x.new_empty(hidden), x.new_empty(hidden)


@_experts_backward.register_fake
def _(
    grad: Tensor, x: Tensor, tokens_per_expert: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, gate: Tensor, up: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), w1.new_empty(w1.shape), w2.new_empty(w2.shape), w3.new_empty(w3.shape)


def _save_experts(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1], output[2])


def _experts_gradients(ctx: Any, grad: Tensor, *unused: Tensor) -> tuple[Tensor, None, Tensor, Tensor, Tensor]:
    """``unused`` are gradients to gate and up, which leave the op for the backward pass only."""
    x_grad, *weights = torch.ops.pilot.experts_backward(grad, *ctx.saved_tensors)
    return x_grad, None, *weights


_experts.register_autograd(_experts_gradients, setup_context=_save_experts)


def _check_experts(x: Tensor, tokens_per_expert: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> None:
    if x.ndim != 2 or w1.ndim != 3:
        raise ValueError(f"nki_moe: x {_shape(x)}, w1 {_shape(w1)}: [rows, dim] and [experts, ffn, dim] expected")
    num_experts, ffn, dim = w1.shape
    if w3.shape != w1.shape or w2.shape != (num_experts, dim, ffn) or x.shape[1] != dim:
        raise ValueError(
            f"nki_moe: x {_shape(x)}, w1 {_shape(w1)}, w2 {_shape(w2)}, w3 {_shape(w3)} do not go together: "
            "x [rows, dim], w1 and w3 [experts, ffn, dim], w2 [experts, dim, ffn] expected"
        )
    dtypes = {x.dtype, w1.dtype, w2.dtype, w3.dtype}
    if len(dtypes) != 1 or x.dtype not in DTYPES:
        raise ValueError(
            f"nki_moe: {', '.join(map(str, dtypes))}: one of float32, bfloat16 or float16 for all expected"
        )
    if tokens_per_expert.shape != (num_experts,) or tokens_per_expert.is_floating_point():
        raise ValueError(f"nki_moe: tokens_per_expert {_shape(tokens_per_expert)}: {num_experts} integers expected")


def _shape(tensor: Tensor) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"
