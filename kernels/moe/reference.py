"""SwiGLU experts in PyTorch: what the kernels are held against, and what a rehearsal executes.

Rows are sorted by expert, as torchtitan's token dispatcher hands them to ``GroupedExperts``: ``x [rows, dim]``,
``w1, w3 [experts, ffn, dim]``, ``w2 [experts, dim, ffn]``. Expert e computes ``w2 (silu(w1 x) * (w3 x))``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def experts_oracle(
    x: torch.Tensor, tokens_per_expert: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor
) -> torch.Tensor:
    """The definition, one expert at a time, in the dtype of its inputs; for float64 and autograd."""
    parts = []
    for expert, rows in enumerate(x.split(_split_sizes(tokens_per_expert, x.shape[0]))[:-1]):
        hidden = F.silu(rows @ w1[expert].T) * (rows @ w3[expert].T)
        parts.append(hidden @ w2[expert].T)
    covered = torch.cat(parts)
    return torch.cat((covered, covered.new_zeros(x.shape[0] - covered.shape[0], covered.shape[1])))


def forward(
    x: torch.Tensor, tokens_per_expert: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output, gate and up, rounded where the kernels round: products summed in float32, then into ``x.dtype``."""
    sizes = _split_sizes(tokens_per_expert, x.shape[0])
    gate, up = _grouped(x, w1.mT, sizes), _grouped(x, w3.mT, sizes)
    hidden = (F.silu(gate.float()) * up.float()).to(x.dtype)
    return _grouped(hidden, w2.mT, sizes), gate, up


def backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    tokens_per_expert: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    w3: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients to x, w1, w2, w3."""
    sizes = _split_sizes(tokens_per_expert, x.shape[0])
    wide_gate, wide_up = gate.float(), up.float()
    sigmoid = torch.sigmoid(wide_gate)
    silu = wide_gate * sigmoid
    hidden = (silu * wide_up).to(x.dtype)
    hidden_grad = _grouped(grad, w2, sizes, keep_float=True)
    up_grad = (silu * hidden_grad).to(x.dtype)
    gate_grad = ((sigmoid + silu * (1 - sigmoid)) * wide_up * hidden_grad).to(x.dtype)
    x_grad = _grouped(gate_grad, w1, sizes, keep_float=True) + _grouped(up_grad, w3, sizes, keep_float=True)
    return (
        x_grad.to(x.dtype),
        _weight_grad(gate_grad, x, sizes, w1.dtype),
        _weight_grad(grad, hidden, sizes, w2.dtype),
        _weight_grad(up_grad, x, sizes, w3.dtype),
    )


def _split_sizes(tokens_per_expert: torch.Tensor, rows: int) -> list[int]:
    """Rows of each expert, and at the end the rows of none."""
    sizes = [int(count) for count in tokens_per_expert.tolist()]
    if sum(sizes) > rows:
        raise ValueError(f"nki_moe: tokens_per_expert adds up to {sum(sizes)}, x has {rows} rows")
    return [*sizes, rows - sum(sizes)]


def _grouped(x: torch.Tensor, weight: torch.Tensor, sizes: list[int], *, keep_float: bool = False) -> torch.Tensor:
    """``x_e @ weight[e]`` for the rows of each expert e; rows of no expert give zeros."""
    out = torch.zeros(x.shape[0], weight.shape[2], dtype=torch.float32 if keep_float else x.dtype, device=x.device)
    for expert, (rows, target) in enumerate(zip(x.split(sizes)[:-1], out.split(sizes)[:-1], strict=True)):
        if rows.shape[0]:
            target.copy_(rows.float() @ weight[expert].float())
    return out


def _weight_grad(left: torch.Tensor, right: torch.Tensor, sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    """``left_e transposed @ right_e`` for each expert."""
    pairs = zip(left.split(sizes)[:-1], right.split(sizes)[:-1], strict=True)
    return torch.stack([(a.float().T @ b.float()).to(dtype) for a, b in pairs])
