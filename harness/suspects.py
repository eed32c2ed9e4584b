"""Who is to blame where a training's first loss is not that of plain Transformers.

The loss is computed again under each suspicion: a suspect fits when it reproduces what was observed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.batch_loss import Batch, batch_loss, token_losses
from harness.weights import HEAD, read_tensors

THETAS = (1e4, 1e6, 5e6)
"""RoPE bases of published models: Llama and Qwen2 small, Qwen3, Qwen3-Instruct-2507."""
TABLE_TOLERANCE = 1e-5
"""How far a frequency, at most 1, may be from the formula and still be that of its theta: some float32 roundings."""


@dataclass(frozen=True)
class Suspect:
    """One suspicion and the loss that Transformers has under it; ``fits``: it is the observed one."""

    name: str
    detail: str
    loss: float
    fits: bool


def compare_thetas(model: Any, batch: Batch, losses: Any, masked: bool) -> dict[str, float]:
    """Whether the weights were trained with another RoPE base than config.json says: they predict better with it.

    Returns:
        of the base with the lowest loss among config.json's and THETAS: theta, loss, errors (by how many standard
        errors, of the difference paired by token, it is lower than config.json's; 0 for that itself) and said
        (config.json's).
    """
    rotary, said = model.model.rotary_emb, model.config.rope_parameters["rope_theta"]
    best = {"theta": said, "loss": losses.mean().item(), "errors": 0.0, "said": said}
    for theta in [base for base in THETAS if base != said]:
        with _frequencies(rotary, inverse_frequencies(2 * len(rotary.inv_freq), theta)):
            other = token_losses(model, batch, masked=masked)
        gain = losses - other
        if other.mean().item() < best["loss"]:
            errors = (gain.mean() / (gain.std() / len(gain) ** 0.5)).item()
            best = {"theta": theta, "loss": other.mean().item(), "errors": errors, "said": said}
    return best


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


def measured(model: Any, evidence: dict[str, Any]) -> list[tuple[str, str]]:
    """What is wrong with the training's own tables and tying by themselves, whatever the loss: names and details.

    A short batch may hide it: with few and near tokens another RoPE base can cost less than the tolerance.
    """
    theta, found = model.config.rope_parameters["rope_theta"], []
    if (frequencies := _own_frequencies(evidence)) is not None:
        found.append(describe_table(frequencies, theta))
    if model.config.tie_word_embeddings and (distance := evidence.get("head_difference", 0.0)) > 0:
        found.append(("tied_head", f"the training's head is {distance:.2g} away from its embedding"))
    return [item for item in found if item is not None]


def _own_frequencies(evidence: dict[str, Any]) -> Any | None:
    if "cosine_sine" in evidence:
        return _frequencies_of(evidence["cosine_sine"])
    return evidence.get("inverse_frequencies")


def _rope_suspicions(model: Any, evidence: dict[str, Any]) -> Iterator[tuple[str, str, AbstractContextManager[object]]]:
    """The training's own table, the bases of published models, and no rotation at all."""
    rotary = model.model.rotary_emb
    theta = model.config.rope_parameters["rope_theta"]
    own = _own_frequencies(evidence)
    if own is not None and (described := describe_table(own, theta)) is not None:
        table = evidence.get("cosine_sine")
        yield (*described, _frequencies(rotary, own) if table is None else _table(rotary, table))
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
