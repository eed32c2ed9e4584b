"""The loss of a model of Transformers on a batch that a training left behind, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

HEAD_TOKENS = 512
"""Tokens whose logits are held at once: 512 x 151,936 in float32 are 0.3 GB."""
IGNORED = -100
"""torchtitan's label of a token that does not count."""


@dataclass(frozen=True)
class Batch:
    """One global batch, [sequences, L] each; ``positions`` start at 0 in every document."""

    tokens: Any
    labels: Any
    positions: Any

    @property
    def counted(self) -> int:
        return int((self.labels != IGNORED).sum())


def read_batch(files: Sequence[str]) -> Batch:
    """The batches of all ranks as one."""
    import numpy
    import torch

    parts: dict[str, list[Any]] = {"tokens": [], "labels": [], "positions": []}
    for file in files:
        with numpy.load(file) as arrays:
            for name, found in parts.items():
                found.append(torch.from_numpy(arrays[name]).long().flatten(0, 1))
    return Batch(**{name: torch.cat(found) for name, found in parts.items()})


def batch_loss(model: Any, batch: Batch, *, masked: bool, positions: bool | None = None) -> float:
    """Mean of :func:`token_losses`."""
    return token_losses(model, batch, masked=masked, positions=positions).mean().item()


def token_losses(model: Any, batch: Batch, *, masked: bool, positions: bool | None = None) -> Any:
    """Cross entropy of every token that counts, float64 [tokens]; computed one sequence at a time.

    Args:
        masked: attention stops at documents.
        positions: positions start again at documents; None: as ``masked``.
    """
    import torch

    restart = masked if positions is None else positions
    found = []
    for tokens, labels, where in zip(batch.tokens, batch.labels, batch.positions, strict=True):
        arguments = mask_arguments(where.unsqueeze(0), masked=masked, restart=restart)
        with torch.no_grad():
            hidden = model.model(tokens.unsqueeze(0), **arguments).last_hidden_state[0]
            for piece, wanted in zip(hidden.split(HEAD_TOKENS), labels.split(HEAD_TOKENS), strict=True):
                logits = model.lm_head(piece).float()
                each = torch.nn.functional.cross_entropy(logits, wanted, reduction="none", ignore_index=IGNORED)
                found.append(each[wanted != IGNORED].double())
    return torch.cat(found)


def mask_arguments(positions: Any, *, masked: bool = True, restart: bool = True) -> dict[str, Any]:
    """Transformers' arguments for packed documents, ``positions`` [B, L]; nothing for plain causal attention.

    The mask is handed over ready-made, additive [B, 1, L, L], so that Transformers infers nothing from the positions.
    """
    import torch

    if not masked and not restart:
        return {}
    document = torch.cumsum((positions == 0).int(), dim=1) if masked else torch.zeros_like(positions)
    allowed = (document[:, :, None] == document[:, None, :]).tril().unsqueeze(1)
    blocked = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    in_order = torch.arange(positions.shape[1]).expand_as(positions)
    return {"position_ids": positions if restart else in_order, "attention_mask": blocked}
