"""A checkpoint directory loaded as a user would load it: ``AutoModelForCausalLM.from_pretrained(DIR)``, and what came.

``reload_report`` answers from a process of its own; ``python -m harness.reload DIR`` prints the same as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from harness.batch_loss import mask_arguments
from harness.weights import HEAD, read_tensors

PROMPT = "The assert statement"
"""Continued greedily; any text would do, this one is in the rehearsal's corpus."""
NEW_TOKENS = 16
TIMEOUT_S = 1800.0
"""Reading 16 GB from a slow disk takes minutes."""
LISTED = 10
"""Keys of a kind that a report lists; ``counts`` has them all."""
ROOM = 1.25
"""Memory while loading, relative to the float32 parameters: 1.1 was measured, the rest is activations."""


def reload_report(
    directory: Path | str, *, probe: Path | None = None, prompt: str = PROMPT, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """What Transformers makes of the checkpoint in ``directory``; see :func:`reload_here` for the keys.

    Never raises for a bad checkpoint: ``loaded`` is false, or null where it was not tried, and ``error`` says why.

    Args:
        probe: file of ``harness.titan.checkpoints`` with tokens and the trained model's logits, to compare with.
        timeout_s: after which the attempt is given up.
    """
    from harness.beside import Beside

    with Beside() as beside:
        return ask(beside, directory, probe=probe, prompt=prompt, timeout_s=timeout_s)


def ask(
    beside: Any, directory: Path | str, *, probe: Path | None = None, prompt: str = PROMPT, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """:func:`reload_report` from a process that already runs."""
    from harness.beside import NoAnswer

    if why := too_large(Path(directory)):
        return {"loaded": None, "error": why}
    arguments = {"directory": str(directory), "probe": str(probe) if probe else None, "prompt": prompt}
    try:
        return beside.ask("reload", timeout_s=timeout_s, **arguments)
    except NoAnswer as error:
        return {"loaded": False, "error": str(error)}


def too_large(directory: Path) -> str:
    """Why the checkpoint cannot be loaded on this machine, from headers alone; empty where it can, or cannot be told.

    Loading is in float32, which every checkpoint can be compared in.
    """
    import math

    import psutil

    try:
        tensors = read_tensors(directory)
    except ValueError:
        return ""  # for Transformers to say
    needed = ROOM * 4 * sum(math.prod(tensor.shape) for tensor in tensors.values())
    free = psutil.virtual_memory().available
    if needed <= free:
        return ""
    return f"not loaded: {needed / 1e9:,.1f} GB of memory are needed, {free / 1e9:,.1f} GB are free"


def reload_here(directory: str, probe: str | None = None, prompt: str = PROMPT) -> dict[str, Any]:
    """Load in this process, which must not hold torchtitan (it patches Transformers).

    Returns:
        loaded (bool), error; counts: {missing, unexpected, mismatched}, and the first names of each under the same
        names; parameters, a tied head counted once; dtypes: those in the files; tied: what config.json says,
        head_in_file, head_is_embedding: what became of it; logits: max_abs_diff from the probe's, scale (the largest
        of the probe's), positions, lost, routing_bias; continuation: prompt, text, tokens, or error; seconds.
    """
    import torch
    from transformers import AutoModelForCausalLM

    started = time.monotonic()
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            local_files_only=True,
        )
    except Exception as error:
        return {"loaded": False, "error": _first_line(error)}
    model.eval()
    kinds = {kind: _names(info.get(f"{kind}_keys")) for kind in ("missing", "unexpected", "mismatched")}
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    files = _files(Path(directory))
    report = {
        "loaded": True,
        "error": "",
        "counts": {kind: len(names) for kind, names in kinds.items()},
        **{kind: names[:LISTED] for kind, names in kinds.items()},
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtypes": sorted({tensor.dtype for tensor in files.values()}),
        "tied": bool(model.config.tie_word_embeddings),
        "head_in_file": HEAD in files,
        "head_is_embedding": head is not None and head.weight is embedding.weight,
        "logits": _compare(model, Path(probe)) if probe else None,
        "continuation": _continue(model, directory, prompt),
    }
    return report | {"seconds": round(time.monotonic() - started, 2)}


def head_lost(report: dict[str, Any]) -> bool:
    """Whether config.json ties the head to the embedding but the loaded model has one of its own."""
    return report["tied"] and not report["head_is_embedding"]


def _files(directory: Path) -> dict[str, Any]:
    try:
        return read_tensors(directory)
    except ValueError:  # Transformers read something that is no safetensors
        return {}


def _compare(model: Any, probe: Path) -> dict[str, Any]:
    """Largest difference between this model's logits and the probe's, over the probe's positions.

    ``lost``: how far the probe's logits as trained are from those that an export can hold (a router's bias has no place
    in it), and ``routing_bias``, its largest value; both 0 where there is none.
    """
    import numpy
    import torch

    with numpy.load(probe) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    trained, positions = arrays["logits"], arrays.get("positions")
    wanted = arrays.get("exported_logits", trained)
    with torch.no_grad():
        arguments = {} if positions is None else mask_arguments(positions.long())
        found = model(arrays["tokens"].long(), **arguments).logits.float()
    return {
        "max_abs_diff": _largest(found - wanted),
        "scale": wanted.abs().max().item(),
        "positions": arrays["tokens"].numel(),
        "lost": _largest(trained - wanted),
        "routing_bias": float(arrays["routing_bias"].max()) if "routing_bias" in arrays else 0.0,
    }


def _largest(difference: Any) -> float:
    """Infinite where there is a NaN."""
    return difference.abs().nan_to_num(nan=float("inf"), posinf=float("inf")).max().item()


def _continue(model: Any, directory: str, prompt: str) -> dict[str, Any]:
    """The prompt's greedy continuation; a checkpoint without a tokenizer can have none."""
    import torch
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
        with torch.no_grad():
            tokens = model.generate(
                inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=NEW_TOKENS, do_sample=False
            )[0]
    except Exception as error:
        return {"prompt": prompt, "error": _first_line(error)}
    new = tokens[inputs.shape[1] :]
    return {"prompt": prompt, "text": tokenizer.decode(new), "tokens": new.tolist()}


def _names(keys: Any) -> list[str]:
    """Sorted names; a mismatched key comes with both of its shapes."""
    return sorted(key if isinstance(key, str) else f"{key[0]} {list(key[1])} for {list(key[2])}" for key in keys or ())


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m harness.reload DIR", file=sys.stderr)
        return 2
    report = reload_report(arguments[0])
    print(json.dumps(report, indent=1))
    return 0 if report["loaded"] and not any(report["counts"].values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
