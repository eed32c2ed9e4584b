"""Tiny "published" models: trained with plain Transformers, saved as their authors would.

``python -m tests.weights_training.published FOLDER`` makes ``FOLDER/dense`` and ``FOLDER/moe``, in a process of its own
that torchtitan has not patched.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from harness.data import DataConfig, resolve
from harness.paths import load_path
from harness.shapes import ModelShape
from harness.titan.assets import prepare_data, pydoc_corpus, transformers_config

LAYERS, LENGTH, SEQUENCES = 2, 128, 8
STEPS = {"dense": 200, "moe": 100}
"""What brings the loss well below that of random weights."""


def published_shape(kind: str) -> ModelShape:
    """The rehearsal's narrow widths; the dense one has the RoPE base of Instruct-2507."""
    if kind == "moe":
        return load_path("moe_nki").rehearsal_shape(num_layers=LAYERS)
    return dataclasses.replace(load_path("hf_4b").rehearsal_shape(num_layers=LAYERS), rope_theta=5e6)


def make(folder: Path, kind: str) -> float:
    """Train and save one model; its last loss."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    shape, cache = published_shape(kind), folder / "cache"
    data = prepare_data(resolve(DataConfig()), cache=cache, vocab=shape.vocab)
    tokenizer = AutoTokenizer.from_pretrained(data.tokenizer)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(transformers_config(shape, cache=cache)))
    tokens = _corpus_tokens(tokenizer, cache)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=STEPS[kind], pct_start=0.1)
    for _ in range(STEPS[kind]):
        begin = torch.randint(len(tokens) - LENGTH - 1, (SEQUENCES,))
        inputs = torch.stack([tokens[start : start + LENGTH + 1] for start in begin])
        logits = model(inputs[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder / kind, max_shard_size="2MB" if kind == "moe" else "5GB")
    for file in Path(data.tokenizer).iterdir():
        shutil.copy(file, folder / kind)
    return loss.item()


def _corpus_tokens(tokenizer: Any, cache: Path) -> Any:
    import torch

    texts = [json.loads(line)["text"] for line in pydoc_corpus(cache).read_text(encoding="utf-8").splitlines()]
    return torch.tensor([token for ids in tokenizer(texts).input_ids for token in (*ids, 0)])


if __name__ == "__main__":
    for name in STEPS:
        began = time.monotonic()
        print(name, round(make(Path(sys.argv[1]), name), 3), f"{time.monotonic() - began:.1f} s")
