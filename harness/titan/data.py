"""Text for torchtitan's data loader: registration in one place, and what a batch carries besides its tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy
import torch
from datasets import Dataset, load_dataset
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataLoader

from harness.titan.spec import DataSpec

IN_MEMORY_BYTES = 256 * 2**20
"""Larger text is memory-mapped by the datasets library, through a cache on disk that it manages."""


class PilotDataLoader(HuggingFaceTextDataLoader):
    """torchtitan's packed text, with the positions and masks that the run asks for.

    The library yields positions that start at 0 in every document; from them it builds block masks for FlexAttention,
    which has no backward on CPU. A batch is ``({"input": [B, L], ...}, labels [B, L])``.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(HuggingFaceTextDataLoader.Config):
        documents: Literal["ignore", "positions", "dense_mask"] = "ignore"
        """ignore: no positions, so every sequence counts from 0 and RoPE needs no gather; positions: as the library
        yields them; dense_mask: and a boolean ``attention_masks`` [B, 1, L, L], true where attention is allowed."""
        evidence: str = ""
        """Directory for ``batch-RANK.npz``: the first step's tokens, labels and positions [batches, B, L]."""
        first_step_batches: int = 1
        """Micro batches of one step on one rank."""

    def __init__(self, config: Config, *, dp_rank: int, **kwargs: Any) -> None:
        self._documents = config.documents
        file = Path(config.evidence) / f"batch-{dp_rank}.npz" if config.evidence else None
        self._first_step = FirstStep(file, config.first_step_batches)
        super().__init__(config, dp_rank=dp_rank, **kwargs)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for inputs, labels in super().__iter__():
            self._first_step.see(inputs["input"], labels, inputs["positions"])
            if self._documents == "ignore":
                del inputs["positions"]
            elif self._documents == "dense_mask":
                inputs["attention_masks"] = dense_document_mask(inputs["positions"])
            yield inputs, labels


class FirstStep:
    """Writes down the batches of the first step, as the trainer gets them; the positions also where they are unused."""

    def __init__(self, file: Path | None, batches: int) -> None:
        self._file, self._missing = file, batches
        self._seen: list[tuple[torch.Tensor, ...]] = []

    def see(self, tokens: torch.Tensor, labels: torch.Tensor, positions: torch.Tensor) -> None:
        """One micro batch, each [B, L]."""
        if self._file is None or not self._missing:
            return
        self._missing -= 1
        self._seen.append((tokens, labels, positions))
        if not self._missing:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            columns = [torch.stack(column).int().cpu().numpy() for column in zip(*self._seen, strict=True)]
            numpy.savez(self._file, **dict(zip(("tokens", "labels", "positions"), columns, strict=True)))
            self._seen.clear()


def dense_document_mask(positions: torch.Tensor) -> torch.Tensor:
    """Causal attention within documents, [B, 1, L, L] and true where allowed; a document starts at position 0.

    Args:
        positions: [B, L]; a sequence that begins inside a document counts as beginning one.
    """
    document = torch.cumsum((positions == 0).int(), dim=1)
    same = document[:, :, None] == document[:, None, :]
    return (same & torch.ones_like(same[0]).tril()).unsqueeze(1)


def register(data: DataSpec, *, ranks: int) -> None:
    """Make ``data`` known to torchtitan under its name; without files the library's own entry stays.

    Args:
        ranks: how many ranks share the documents; reading fails with a ValueError where there are fewer documents,
            since the library would loop over nothing, forever, on the ranks that get none.
    """
    if not data.files:
        if data.name not in DATASETS:
            raise ValueError(f"data set {data.name!r} names no files and torchtitan knows none of that name")
        return
    loader = partial(_load, data=data, ranks=ranks)
    DATASETS[data.name] = DatasetConfig(
        path=str(Path(data.files[0]).parent), loader=loader, sample_processor=lambda sample: sample["text"]
    )


def _load(path: str, *, data: DataSpec, ranks: int) -> Dataset:
    """A map-style data set with the one column ``text``; ``path`` is only what the log shows."""
    if sum(Path(file).stat().st_size for file in data.files) <= IN_MEMORY_BYTES:
        texts = [text for file in data.files for text in read_texts(Path(file), data.text_field)]
        table = Dataset.from_dict({"text": texts})
    else:
        table = load_dataset("json", data_files=list(data.files), split="train")
        if data.text_field not in table.column_names:
            raise ValueError(f"{data.files[0]} has no key {data.text_field!r}; name it with data.text_field=KEY")
        table = table.select_columns([data.text_field]).rename_column(data.text_field, "text")
    if len(table) < ranks:
        raise ValueError(
            f"data set {data.name!r} has {len(table)} documents, fewer than the {ranks} ranks that read it"
        )
    return table


def read_texts(file: Path, text_field: str) -> Iterator[str]:
    """Texts of a JSON-lines file, empty ones left out.

    Raises:
        ValueError: a line that is no JSON object with that key; the message names file and line.
    """
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)[text_field]
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{file}, line {number}: expected a JSON object with a text under {text_field!r} (data.text_field)"
                ) from error
            if not isinstance(text, str):
                raise ValueError(f"{file}, line {number}: {text_field!r} holds {type(text).__name__}, expected text")
            if text:
                yield text
