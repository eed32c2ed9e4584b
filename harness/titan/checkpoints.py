"""torchtitan's checkpoint manager, and what it leaves behind for Transformers to be compared with.

In the evidence directory:

* ``start.npz``   the RoPE table the training really has, how far its head is from its embedding, before the first step
* ``initial/``    the weights before the first step as Hugging Face safetensors, where asked for
* ``logits.npz``  after the last step, where that is exported: the trained model's logits on the first micro batch

torchtitan balances experts by a bias on the router's choice, which no published Qwen3 has: the format has no place for
it and the library's export leaves it out. A mixture of experts therefore has two sets of logits: as trained, and
without that bias, which is what an export holds.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.tools.logging import logger

from harness.titan import rope

INITIAL, START, LOGITS = "initial", "start.npz", "logits.npz"
PROBE_POSITIONS = 64
"""Logits are kept of the first positions only: they depend on nothing later, so that a reload need compute no more."""


class PilotCheckpointManager(CheckpointManager):
    """Loads and saves as the library does; see the module for what it adds."""

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):
        evidence: str = ""
        """Absolute directory; empty: none is left."""
        keep_initial: bool = False

    def __init__(self, config: Config, *, model_parts: list[nn.Module], **kwargs: Any) -> None:
        self._model = model_parts[-1]
        self._evidence = Path(config.evidence) if config.evidence else None
        self._keep_initial = config.keep_initial
        self._first_call: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        super().__init__(config, model_parts=model_parts, **kwargs)

    @torch.no_grad()
    def _load(self, step: int = -1) -> bool:
        loaded = super()._load(step)
        if self._evidence is not None and self.states["train_state"].step == 0:
            self._evidence.mkdir(parents=True, exist_ok=True)
            describe_start(self._model, self._evidence / START)
            if self._keep_initial:
                path = str(self._evidence / INITIAL)
                at_once = type(self.async_mode)("disabled")
                self.dcp_save(self.states["model"].state_dict(), path, at_once, to_hf=True)
        if self._evidence is not None and self.last_save_in_hf:
            self._remember_first_call()
        return loaded

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        saved = super()._save(curr_step, last_step)
        if last_step and self._first_call is not None:
            assert self._evidence is not None
            try:
                with self.states["train_state"].train_context():
                    write_logits(self._model, self._first_call, self._evidence / LOGITS)
            except Exception as error:  # the export is complete; without logits its check says that it lacks them
                logger.warning(f"[pilot] the trained model's logits were not kept: {type(error).__name__}: {error}")
        return saved

    def _remember_first_call(self) -> None:
        """Keep what the model is first called with: the first micro batch, on the device, with its masks."""

        def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._first_call = args, dict(kwargs)
            handle.remove()

        handle = self._model.register_forward_pre_hook(keep, with_kwargs=True)


def describe_start(model: nn.Module, file: Path) -> None:
    """Write the RoPE table and ``head_difference``: the largest of head minus embedding, 0 if they are one (rank 0)."""
    difference = head_difference(model)
    if not dist.is_initialized() or dist.get_rank() == 0:
        numpy.savez(file, head_difference=difference, **{name: t.numpy() for name, t in rope.table(model).items()})


def head_difference(model: nn.Module) -> float:
    """Largest absolute difference between head and embedding over all ranks; every rank must call it."""
    head, embedding = (_local(module.weight) for module in (model.lm_head, model.tok_embeddings))
    found = torch.zeros((), device=head.device)
    if head.shape == embedding.shape and head.numel() and head.data_ptr() != embedding.data_ptr():
        found = (head.detach() - embedding.detach()).abs().max().float()
    if dist.is_initialized():
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found.item()


@torch.no_grad()
def write_logits(model: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]], file: Path) -> None:
    """Call the model once more as it was called first and write the logits of the first positions (rank 0).

    Every rank has to take part. The shapes are those of the training, which kernels and compiled graphs are made for.
    """
    args, kwargs = call
    found = {"tokens": args[0], "logits": _first_logits(model, call)}
    if kwargs.get("positions") is not None:
        found["positions"] = kwargs["positions"]
    if biases := routing_biases(model):
        with _zeroed(biases):
            found["exported_logits"] = _first_logits(model, call)
        found["routing_bias"] = torch.stack([bias.abs().max() for bias in biases]).max().reshape(1, 1)
    if not dist.is_initialized() or dist.get_rank() == 0:
        numpy.savez(file, **{name: tensor[:, :PROBE_POSITIONS].cpu().numpy() for name, tensor in found.items()})


def _first_logits(model: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]]) -> torch.Tensor:
    """Logits [B, PROBE_POSITIONS, vocabulary] in float32."""
    with _uncounted(), _first_positions_only(model):
        logits = model(*call[0], **call[1])
    return (logits.full_tensor() if isinstance(logits, DTensor) else logits).float()


def routing_biases(model: nn.Module) -> list[torch.Tensor]:
    """The biases of the routers, [experts] each, the same on every rank."""
    found = (getattr(module, "expert_bias_E", None) for module in model.modules())
    return [_local(bias) for bias in found if isinstance(bias, torch.Tensor)]


@contextlib.contextmanager
def _zeroed(tensors: list[torch.Tensor]) -> Iterator[None]:
    before = [tensor.clone() for tensor in tensors]
    for tensor in tensors:
        tensor.zero_()
    try:
        yield
    finally:
        for tensor, values in zip(tensors, before, strict=True):
            tensor.copy_(values)


@contextlib.contextmanager
def _first_positions_only(model: nn.Module) -> Iterator[None]:
    """The head sees the first positions only; the whole [B, L, vocabulary] would not fit beside a large model."""

    def cut(head: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (args[0][:, :PROBE_POSITIONS], *args[1:])

    skip, handle = getattr(model, "_skip_lm_head", False), model.lm_head.register_forward_pre_hook(cut)
    model._skip_lm_head = False  # the chunked loss calls the head itself
    try:
        yield
    finally:
        handle.remove()
        model._skip_lm_head = skip


def _uncounted() -> AbstractContextManager[object]:
    """Kernel calls inside do not count as the training's."""
    backend = sys.modules.get("kernels.backend")
    if backend is None:
        return nullcontext()
    isolated: Callable[..., AbstractContextManager[object]] = backend.isolated
    return isolated(backend.execution().backend, lnc=backend.execution().lnc)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
