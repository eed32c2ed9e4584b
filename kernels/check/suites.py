"""What is compared for each kernel: inputs, the op's results, and the reference's (torch, on CPU).

A suite runs the op as a model does, autograd included, on the device of the backend in force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import backend
from kernels.check.shapes import ExpertShape, RopeShape, Shape

SPARE_ROWS = 64
Comparison = tuple[str, Tensor, Tensor]
"""What is compared, the kernel's result, the reference's."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Largest difference that passes, and why."""

    measure: str
    """max_abs, or max_rel: relative to the largest magnitude of the reference."""
    limit: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class Suite:
    """The comparisons of one kernel."""

    compare: Callable[[Shape, torch.dtype], Iterator[Comparison]]
    default_shapes: tuple[Shape, ...]
    calls: int
    """Forward calls, and as many backward, that the comparisons of one shape make."""
    launches: dict[str, int]
    """How often one call launches each NKI kernel, forward and backward together."""
    tolerance: dict[str, Tolerance]


def device() -> torch.device:
    """Where the backend in force wants its tensors."""
    return torch.device("neuron" if backend.execution().backend == "neuron" else "cpu")


# -- rotary position embedding ------------------------------------------------------------------------------------


def compare_rope(shape: RopeShape, dtype: torch.dtype) -> Iterator[Comparison]:
    """Forward and gradients of query and key; the reference computes in float32 and rounds once.

    Every column of the cache has angles of its own, unlike RoPE's, whose halves are equal: a kernel that takes the
    wrong half, or the wrong row, cannot get away with it. As in a model, the cache has more rows than the sequence.
    """
    from kernels import ops
    from kernels.rope.reference import rotate

    angles = torch.rand(shape.seq + SPARE_ROWS, shape.head_dim) * (2 * torch.pi)
    cache = torch.cat((angles.cos(), angles.sin()), dim=1)
    sizes = [(shape.batch, shape.seq, heads, shape.head_dim) for heads in (shape.heads, shape.kv_heads)]
    inputs = [torch.randn(size).to(dtype) for size in sizes]
    gradients = [torch.randn(size).to(dtype) for size in sizes]

    mine = _leaves(x.to(device()) for x in inputs)
    results = ops.rope(*mine, cache.to(device()))
    torch.autograd.backward(results, [g.to(device()) for g in gradients])

    theirs = _leaves(inputs)
    references = [rotate(x, cache) for x in theirs]
    torch.autograd.backward(references, gradients)

    for name, index in (("query", 0), ("key", 1)):
        yield f"forward {name}", results[index], references[index]
        yield f"grad {name}", _gradient(mine[index]), _gradient(theirs[index])


# -- experts ------------------------------------------------------------------------------------------------------


def compare_experts(shape: ExpertShape, dtype: torch.dtype) -> Iterator[Comparison]:
    """Forward and all gradients for three ways of distributing rows; the reference computes in float64."""
    for tokens_per_expert in (_routed(shape), _all_on_one(shape), _with_holes(shape)):
        yield from _compare_distribution(shape, dtype, tokens_per_expert)


def _compare_distribution(shape: ExpertShape, dtype: torch.dtype, counts: Tensor) -> Iterator[Comparison]:
    from kernels import ops
    from kernels.moe.reference import experts_oracle

    up_size, down_size = (shape.experts, shape.ffn, shape.dim), (shape.experts, shape.dim, shape.ffn)
    inputs = [torch.randn(shape.rows, shape.dim).to(dtype)]
    # Scaled as weights are, so that hidden values are of order one.
    inputs += [(torch.randn(size) / size[2] ** 0.5).to(dtype) for size in (up_size, down_size, up_size)]
    gradient = torch.randn(shape.rows, shape.dim).to(dtype)

    mine = _leaves(tensor.to(device()) for tensor in inputs)
    result = ops.experts(mine[0], counts.to(device()), *mine[1:])
    result.backward(gradient.to(device()))

    theirs = _leaves(tensor.double() for tensor in inputs)
    reference = experts_oracle(theirs[0], counts, *theirs[1:])
    reference.backward(gradient.double())

    yield "forward", result, reference
    for name, a, b in zip(("x", "w1", "w2", "w3"), mine, theirs, strict=True):
        yield f"grad {name}", _gradient(a), _gradient(b)


def _routed(shape: ExpertShape) -> Tensor:
    """Rows per expert when every token picks ``top_k`` different experts at random."""
    picks = torch.rand(shape.tokens, shape.experts).topk(shape.top_k, dim=1).indices
    return torch.bincount(picks.flatten(), minlength=shape.experts)


def _all_on_one(shape: ExpertShape) -> Tensor:
    counts = torch.zeros(shape.experts, dtype=torch.int64)
    counts[torch.randint(shape.experts, ())] = shape.rows
    return counts


def _with_holes(shape: ExpertShape) -> Tensor:
    """Every second expert is empty, the others get uneven numbers that end in the middle of a tile."""
    weights = torch.rand(shape.experts)
    weights[1::2] = 0
    picks = torch.multinomial(weights, shape.rows, replacement=True)
    return torch.bincount(picks, minlength=shape.experts)


def _leaves(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies that collect gradients."""
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def _gradient(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


SUITES: dict[str, Suite] = {
    "nki_rope": Suite(
        compare=compare_rope,  # type: ignore[arg-type]
        default_shapes=(
            RopeShape(batch=4, heads=1, kv_heads=1, seq=256, head_dim=64),
            RopeShape(batch=1, heads=32, kv_heads=8, seq=512, head_dim=128),
            RopeShape(batch=1, heads=8, kv_heads=1, seq=4096, head_dim=128),
        ),
        calls=1,
        launches={"rope_forward": 1, "rope_backward": 1},
        tolerance={
            "float32": Tolerance(measure="max_abs", limit=0.0, reason="same float32 operations"),
            "bfloat16": Tolerance(measure="max_abs", limit=0.0, reason="float32 inside, rounded once"),
        },
    ),
    "nki_moe": Suite(
        compare=compare_experts,  # type: ignore[arg-type]
        default_shapes=(
            ExpertShape(tokens=96, top_k=4, dim=192, ffn=96, experts=8),
            ExpertShape(tokens=256, top_k=4, dim=64, ffn=32, experts=64),
        ),
        calls=3,
        launches={
            "experts_up": 1,
            "experts_product": 1,
            "experts_hidden_grad": 1,
            "experts_input_grad": 1,
            "experts_weight_grad": 3,
        },
        tolerance={
            "float32": Tolerance(measure="max_rel", limit=1e-6, reason="float32 sums against float64"),
            "bfloat16": Tolerance(measure="max_rel", limit=1e-2, reason="inner results rounded to bfloat16"),
        },
    ),
}
