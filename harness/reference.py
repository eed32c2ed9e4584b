"""The first-step loss by plain Transformers in float32 on the very same global batch.

Runs in the process of ``harness.beside``, on the weights that the training started from; where the training's loss is
another, ``harness.suspects`` says who is to blame.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.batch_loss import read_batch, token_losses
from harness.suspects import Suspect, compare_thetas, measured, suspected

THETAS_IF_S = 30.0
"""The other bases are tried only where loading and the reference itself took no longer."""


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
        loss, tokens, seconds, missing (keys), thetas (:func:`compare_thetas`, None where that would take long),
        measured (name and detail of what is wrong by itself in what the training left), and suspects (name,
        detail, loss, fits), those that fit first; empty where the losses agree within ``tolerance``.
    """
    import torch
    from transformers import AutoModelForCausalLM

    began = time.monotonic()
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True, local_files_only=True
    )
    batch, evidence = read_batch(batches), read_start(start)
    losses = token_losses(model.eval(), batch, masked=masked)
    loss, passed = losses.mean().item(), time.monotonic() - began
    suspects: list[Suspect] = []
    if not abs(loss - observed) <= tolerance:
        suspects = suspected(model, batch, masked, evidence, directory, observed=observed, tolerance=tolerance)
    return {
        "loss": loss,
        "tokens": batch.counted,
        "thetas": compare_thetas(model, batch, losses, masked) if passed <= THETAS_IF_S else None,
        "missing": sorted(info["missing_keys"]),
        "measured": measured(model, evidence),
        "suspects": [asdict(suspect) for suspect in sorted(suspects, key=lambda suspect: not suspect.fits)],
        "seconds": round(time.monotonic() - began, 2),
    }


def read_start(file: str | None) -> dict[str, Any]:
    """``head_difference`` as a number and the RoPE table under its name; empty where the training left none."""
    import numpy
    import torch

    if file is None or not Path(file).is_file():
        return {}
    with numpy.load(file) as arrays:
        found: dict[str, Any] = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    return found | {"head_difference": float(found["head_difference"])}
