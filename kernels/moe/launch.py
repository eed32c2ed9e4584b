"""Running the expert kernels on the backend in force: block table, weight layouts, outputs, counting."""

from __future__ import annotations

import torch

from kernels import backend, nki_api
from kernels.moe import reference
from kernels.moe.blocks import BlockTable, block_table

NAME = "nki_moe"


def forward(
    x: torch.Tensor, tokens_per_expert: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output ``[rows, dim]``, and gate and up ``[rows, ffn]`` for the backward pass."""
    where = backend.execution().backend
    if where == "reference":
        result = reference.forward(x, tokens_per_expert, w1, w2, w3)
    else:
        result = _forward_kernels(x, block_table(tokens_per_expert, x.shape[0]), w1, w2, w3)
    backend.count(NAME, "forward", where)
    return result


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
    where = backend.execution().backend
    if where == "reference":
        result = reference.backward(grad, x, tokens_per_expert, w1, w2, w3, gate, up)
    else:
        table = block_table(tokens_per_expert, x.shape[0])
        result = _backward_kernels(grad.contiguous(), x, table, w1, w2, w3, gate, up)
    backend.count(NAME, "backward", where)
    return result


def _forward_kernels(
    x: torch.Tensor, table: BlockTable, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source = nki_api.kernel_module("kernels.moe.kernel")
    x = x.contiguous()
    gate, up, hidden = (_rows_by(x, w1.shape[1]) for _ in range(3))
    gate, up, hidden = nki_api.launch(
        source.experts_up, x, _turned(w1), _turned(w3), table.rows, table.expert, gate, up, hidden
    )
    out = nki_api.launch(source.experts_product, hidden, _turned(w2), table.rows, table.expert, _rows_by(x, x.shape[1]))
    return out, gate, up


def _backward_kernels(
    grad: torch.Tensor,
    x: torch.Tensor,
    table: BlockTable,
    w1: torch.Tensor,
    w2: torch.Tensor,
    w3: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    source = nki_api.kernel_module("kernels.moe.kernel")
    x, w1, w2, w3 = (tensor.contiguous() for tensor in (x, w1, w2, w3))
    gate_grad, up_grad, hidden = (_rows_by(x, w1.shape[1]) for _ in range(3))
    gate_grad, up_grad, hidden = nki_api.launch(
        source.experts_hidden_grad, grad, w2, gate, up, table.rows, table.expert, gate_grad, up_grad, hidden
    )
    x_grad = nki_api.launch(
        source.experts_input_grad, gate_grad, up_grad, w1, w3, table.rows, table.expert, _rows_by(x, x.shape[1])
    )

    def weight_grad(left: torch.Tensor, right: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        tables = table.rows, table.continues, table.finished
        return nki_api.launch(source.experts_weight_grad, left, right, *tables, nki_api.empty_like(like))

    return x_grad, weight_grad(gate_grad, x, w1), weight_grad(grad, hidden, w2), weight_grad(up_grad, x, w3)


def _rows_by(x: torch.Tensor, columns: int) -> torch.Tensor:
    """A zeroed output with one row per row of ``x``: rows of no expert are never written."""
    return torch.zeros(x.shape[0], columns, dtype=x.dtype, device=x.device)


def _turned(weight: torch.Tensor) -> torch.Tensor:
    """``[experts, contraction, columns]`` of a weight stored the other way round."""
    return weight.transpose(1, 2).contiguous()
