"""Running the RoPE kernels on the backend in force: allocate outputs, turn the layout, count."""

from __future__ import annotations

import torch

from kernels import backend, nki_api
from kernels.rope import reference

NAME = "nki_rope"


def forward(query: torch.Tensor, key: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated query and key, torchtitan's layout in and out, contiguous."""
    return _run("forward", query, key, cache)


def backward(query: torch.Tensor, key: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients rotated back, torchtitan's layout in and out, contiguous."""
    return _run("backward", query, key, cache)


def _run(
    direction: str, query: torch.Tensor, key: torch.Tensor, cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    where = backend.execution().backend
    if where == "reference":
        rotate = reference.rotate if direction == "forward" else reference.rotate_back
        result = rotate(query, cache).contiguous(), rotate(key, cache).contiguous()
    else:
        result = _run_kernel(direction, query, key, cache)
    backend.count(NAME, direction, where)
    return result


def _run_kernel(
    direction: str, query: torch.Tensor, key: torch.Tensor, cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    source = nki_api.kernel_module("kernels.rope.kernel")
    kernel = source.rope_forward if direction == "forward" else source.rope_backward
    heads_first = [x.transpose(1, 2).contiguous() for x in (query, key)]
    packed = (cache if cache.ndim == 3 else cache.unsqueeze(0)).contiguous()
    outputs = [nki_api.empty_like(x) for x in heads_first]
    rotated = nki_api.launch(kernel, *heads_first, packed, *outputs)
    return rotated[0].transpose(1, 2).contiguous(), rotated[1].transpose(1, 2).contiguous()
