"""Refusing positions that a gather-free RoPE would get wrong.

Without a gather, row ``s`` of the cache belongs to token ``s``. Positions that restart at document boundaries would be
rotated by wrong angles and train on, so they are an error.
"""

from __future__ import annotations

import weakref

import torch

MESSAGE = (
    "nki_rope has no gather: positions must be 0, 1, 2, ... in every row, but these are not (they restart at document "
    "boundaries, or start late). Train with sequential positions, or with kernel=baseline"
)
_last_checked: tuple[weakref.ref[torch.Tensor], int] | None = None


def require_sequential(positions: torch.Tensor | None) -> None:
    """Refuse positions other than ``0 .. seq - 1`` in every row.

    Every layer of a model is given the same tensor, so the device is asked for the answer once per tensor, not once per
    layer. In a compiled graph the check is an assertion on the device.

    Args:
        positions: integers ``[batch, seq]`` (or ``[seq]``), or None for sequential ones.

    Raises:
        ValueError: other positions (RuntimeError out of a compiled graph).
    """
    if positions is None or positions.is_meta:
        return
    if torch.compiler.is_compiling():
        torch._assert_async(_is_sequential(positions), MESSAGE)
    elif not _already_checked(positions):
        if not bool(_is_sequential(positions)):
            raise ValueError(MESSAGE)
        _remember(positions)


def _is_sequential(positions: torch.Tensor) -> torch.Tensor:
    expected = torch.arange(positions.shape[-1], device=positions.device, dtype=positions.dtype)
    return torch.all(positions == expected)


def _already_checked(positions: torch.Tensor) -> bool:
    if _last_checked is None or positions.is_inference():
        return False
    tensor, version = _last_checked
    return tensor() is positions and positions._version == version


def _remember(positions: torch.Tensor) -> None:
    global _last_checked
    if not positions.is_inference():
        _last_checked = weakref.ref(positions), positions._version
