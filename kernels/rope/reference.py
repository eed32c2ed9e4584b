"""Rotary position embedding in PyTorch: what the kernels are held against, and what a rehearsal executes.

Layout is torchtitan's: ``[batch, seq, heads, head_dim]``. The cache is ``[rows, 2 * head_dim]``, or the same with a
batch in front: cosines first, one row per position from 0.
"""

from __future__ import annotations

import torch


def rotate(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """Rotate in float32 and round once into ``x.dtype``. Autograd of this is the oracle for the backward kernel."""
    cos, sin = _angles(x, cache)
    wide = x.float()
    half = x.shape[-1] // 2
    swapped = torch.cat((-wide[..., half:], wide[..., :half]), dim=-1)
    return (wide * cos + swapped * sin).to(x.dtype)


def rotate_back(grad: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """The transpose of :func:`rotate`, in float32, rounded once into ``grad.dtype``."""
    cos, sin = _angles(grad, cache)
    wide = grad.float()
    half = grad.shape[-1] // 2
    turned = wide * sin
    swapped = torch.cat((turned[..., half:], -turned[..., :half]), dim=-1)
    return (wide * cos + swapped).to(grad.dtype)


def rope_cache(seq_len: int, head_dim: int, theta: float = 1e6) -> torch.Tensor:
    """Packed float32 cache ``[seq_len, 2 * head_dim]`` of plain RoPE with base ``theta``."""
    inverse = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(seq_len).float(), inverse)
    angles = torch.cat((angles, angles), dim=-1)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def _angles(x: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines as float32 ``[1 or batch, seq, 1, head_dim]``."""
    rows = cache if cache.ndim == 3 else cache.unsqueeze(0)
    cos, sin = rows[:, : x.shape[1]].float().unsqueeze(2).chunk(2, dim=-1)
    return cos, sin
