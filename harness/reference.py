"""The first-step loss by plain Transformers, float32, on the very same global batch, and who is to blame if it differs.

Runs in the process of ``harness.beside``: :func:`reference_losses` loads the weights that the training started from
and, where the training's loss is another, computes the loss again under each suspicion: a suspect fits when it
reproduces what was observed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

THETAS = (1e4, 1e6, 5e6)
"""RoPE bases of published models: Llama and Qwen2 small, Qwen3, Qwen3-Instruct-2507."""
HEAD_TOKENS = 512
"""Tokens whose logits are held at once: 512 x 151,936 in float32 are 0.3 GB."""
IGNORED = -100
"""torchtitan's label of a token that does not count."""
TABLE_TOLERANCE = 1e-5
"""How far a frequency, at most 1, may be from the formula and still be that of its theta: some float32 roundings."""


@dataclass(frozen=True)
class Suspect:
    """One suspicion and the loss that Transformers has under it; ``fits``: it is the observed one."""

    name: str
    detail: str
    loss: float
    fits: bool


@dataclass(frozen=True)
class Batch:
    """One global batch, [sequences, L] each; ``positions`` start at 0 in every document."""

    tokens: Any
    labels: Any
    positions: Any

    @property
    def counted(self) -> int:
        return int((self.labels != IGNORED).sum())


def reference_losses(
    directory: str, batches: list[str], masked: bool, start: str | None, observed: float, tolerance: float
) -> dict[str, Any]:
    """The reference loss, and the suspects if it is not the observed one.

    Args:
        directory: the weights before the first step, with their config.json.
        batches: the ranks' files of the first batch (``harness.titan.data``).
        masked: whether the training stopped attention and positions at documents.
        start: the training's own RoPE table and tying (``harness.titan.checkpoints``).

    Returns:
        loss, tokens, seconds, missing (keys), head_difference (the training's, None if unknown), and suspects (name,
        detail, loss, fits), those that fit first; empty where the losses agree within ``tolerance``.
    """
    import torch
    from transformers import AutoModelForCausalLM

    began = time.monotonic()
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True, local_files_only=True
    )
    batch, evidence = read_batch(batches), read_start(start)
    loss = batch_loss(model.eval(), batch, masked=masked)
    suspects: list[Suspect] = []
    if not abs(loss - observed) <= tolerance:
        suspects = suspected(model, batch, masked, evidence, directory, observed=observed, tolerance=tolerance)
    return {
        "loss": loss,
        "tokens": batch.counted,
        "missing": sorted(info["missing_keys"]),
        "head_difference": evidence.get("head_difference"),
        "suspects": [asdict(suspect) for suspect in sorted(suspects, key=lambda suspect: not suspect.fits)],
        "seconds": round(time.monotonic() - began, 2),
    }


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


def read_start(file: str | None) -> dict[str, Any]:
    """``head_difference`` as a number and the RoPE table under its name; empty where the training left none."""
    import numpy
    import torch

    if file is None or not Path(file).is_file():
        return {}
    with numpy.load(file) as arrays:
        found: dict[str, Any] = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    return found | {"head_difference": float(found["head_difference"])}


def batch_loss(model: Any, batch: Batch, *, masked: bool, positions: bool | None = None) -> float:
    """Mean cross entropy over the batch, one sequence at a time, summed in float64.

    Args:
        masked: attention stops at documents.
        positions: positions start again at documents; None: as ``masked``.
    """
    import torch

    restart = masked if positions is None else positions
    total = torch.zeros((), dtype=torch.float64)
    for tokens, labels, where in zip(batch.tokens, batch.labels, batch.positions, strict=True):
        arguments = mask_arguments(where.unsqueeze(0), masked=masked, restart=restart)
        with torch.no_grad():
            hidden = model.model(tokens.unsqueeze(0), **arguments).last_hidden_state[0]
            for piece, wanted in zip(hidden.split(HEAD_TOKENS), labels.split(HEAD_TOKENS), strict=True):
                logits = model.lm_head(piece).float()
                total += torch.nn.functional.cross_entropy(logits, wanted, reduction="sum", ignore_index=IGNORED)
    return (total / batch.counted).item()


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


# -- suspects ---------------------------------------------------------------------------------------------------------


def suspected(
    model: Any,
    batch: Batch,
    masked: bool,
    evidence: dict[str, Any],
    directory: str,
    *,
    observed: float,
    tolerance: float,
) -> list[Suspect]:
    """The loss under each suspicion that this model allows."""

    def suspect(name: str, detail: str, change: AbstractContextManager[object], **masks: bool) -> Suspect:
        with change:
            loss = batch_loss(model, batch, **({"masked": masked} | masks))
        return Suspect(name, detail, loss, abs(loss - observed) <= tolerance)

    found = [suspect(*suspicion) for suspicion in _rope_suspicions(model, evidence)]
    found += [suspect(*suspicion) for suspicion in _head_suspicions(model, directory)]
    for mask, restart in ((True, True), (True, False), (False, True), (False, False)):
        if (mask, restart) != (masked, masked) and bool((batch.positions[:, 1:] == 0).any()):
            attention = "within documents" if mask else "across documents"
            counting = "within documents" if restart else "through"
            detail = f"attention {attention}, positions counted {counting}"
            found.append(suspect("document_mask", detail, nullcontext(), masked=mask, positions=restart))
    return found


def _rope_suspicions(model: Any, evidence: dict[str, Any]) -> Iterator[tuple[str, str, AbstractContextManager[object]]]:
    """The training's own table, the bases of published models, and no rotation at all."""
    rotary = model.model.rotary_emb
    theta = model.config.rope_parameters["rope_theta"]
    if "inverse_frequencies" in evidence:
        own = evidence["inverse_frequencies"]
        if (described := describe_table(own, theta)) is not None:
            yield (*described, _frequencies(rotary, own))
    elif "cosine_sine" in evidence:
        own = evidence["cosine_sine"]
        if (described := describe_table(_frequencies_of(own), theta)) is not None:
            yield (*described, _table(rotary, own))
    for other in THETAS:
        if other != theta:
            detail = f"theta {other:g} instead of config.json's {theta:g}"
            yield "rope_theta", detail, _frequencies(rotary, inverse_frequencies(2 * len(rotary.inv_freq), other))
    yield "rope_buffers", "no rotation, as with zeroed buffers", _frequencies(rotary, 0 * rotary.inv_freq)


def describe_table(own: Any, theta: float) -> tuple[str, str] | None:
    """Name and detail of the suspicion against a training's frequencies [head_dim / 2]; None if they are theta's."""
    for base in (theta, *THETAS):
        if (inverse_frequencies(2 * len(own), base) - own).abs().max() <= TABLE_TOLERANCE:
            if base == theta:
                return None
            return "rope_theta", f"the training's RoPE table has theta {base:g}, config.json {theta:g}"
    return "rope_buffers", f"the training's RoPE table is not that of theta {theta:g}: as if never initialised"


def _frequencies_of(table: Any) -> Any:
    """Frequencies [head_dim / 2] from cosines and sines [positions, 2 head_dim]; NaN if the table is that of none."""
    import torch

    half = table.shape[1] // 4
    frequencies = torch.atan2(table[1, 2 * half : 3 * half], table[1, :half])
    cosines = torch.outer(torch.arange(len(table)).float(), frequencies).cos()
    coarse = len(table) * TABLE_TOLERANCE  # an error of a frequency grows with the position
    return frequencies if (cosines - table[:, :half]).abs().max() <= coarse else torch.full_like(frequencies, torch.nan)


def inverse_frequencies(head_dim: int, theta: float) -> Any:
    """Angle per position in float32, [head_dim / 2]: theta ** (-2 i / head_dim) (arXiv 2104.09864, eq. 15)."""
    import torch

    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


@contextlib.contextmanager
def _frequencies(rotary: Any, values: Any) -> Iterator[None]:
    before = rotary.inv_freq.clone()
    rotary.inv_freq.copy_(values)
    try:
        yield
    finally:
        rotary.inv_freq.copy_(before)


@contextlib.contextmanager
def _table(rotary: Any, values: Any) -> Iterator[None]:
    cosine, sine = values.chunk(2, dim=1)
    before: Callable[..., Any] = rotary.forward
    rotary.forward = lambda x, position_ids: (cosine[position_ids], sine[position_ids])
    try:
        yield
    finally:
        rotary.forward = before


def _head_suspicions(model: Any, directory: str) -> Iterator[tuple[str, str, AbstractContextManager[object]]]:
    """The head that Transformers does not use: the embedding, or a head of its own in the file."""
    head, embedding = model.lm_head.weight, model.model.embed_tokens.weight
    if head is not embedding and head.shape == embedding.shape:
        said = "config.json ties them, the file holds both and they differ" if model.config.tie_word_embeddings else ""
        detail = "the head is the embedding" + (f" ({said})" if said else "")
        yield "tied_head", detail, _head(model, embedding)
    elif (stored := _stored_head(directory)) is not None and stored.shape == head.shape and not _same(stored, head):
        yield "tied_head", "the head is the file's lm_head.weight, not the embedding", _head(model, stored)


def _stored_head(directory: str) -> Any | None:
    from safetensors import safe_open

    from harness.weights import HEAD, read_tensors

    tensors = read_tensors(Path(directory))
    if HEAD not in tensors:
        return None
    with safe_open(str(Path(directory) / tensors[HEAD].file), "pt") as file:
        return file.get_tensor(HEAD).float()


def _same(left: Any, right: Any) -> bool:
    import torch

    return torch.equal(left, right.detach())


@contextlib.contextmanager
def _head(model: Any, weight: Any) -> Iterator[None]:
    import torch

    before = model.lm_head.weight
    model.lm_head.weight = torch.nn.Parameter(weight.detach(), requires_grad=False)
    try:
        yield
    finally:
        model.lm_head.weight = before
