"""Text for torchtitan's data loader: registration in one place, and what a batch carries besides its tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

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

    def __init__(self, config: Config, **kwargs: Any) -> None:
        self._documents = config.documents
        super().__init__(config, **kwargs)
        rows, ranks = len(self.dataset._original_data), kwargs["dp_world_size"]
        if rows == 0:  # the library would loop over nothing, forever
            raise ValueError(f"data set {config.dataset!r} has fewer documents than the {ranks} ranks that read it")

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for inputs, labels in super().__iter__():
            if self._documents == "ignore":
                del inputs["positions"]
            elif self._documents == "dense_mask":
                inputs["attention_masks"] = dense_document_mask(inputs["positions"])
            yield inputs, labels


def dense_document_mask(positions: torch.Tensor) -> torch.Tensor:
    """Causal attention within documents, [B, 1, L, L] and true where allowed; a document starts at position 0.

    Args:
        positions: [B, L]; a sequence that begins inside a document counts as beginning one.
    """
    document = torch.cumsum((positions == 0).int(), dim=1)
    same = document[:, :, None] == document[:, None, :]
    return (same & torch.ones_like(same[0]).tril()).unsqueeze(1)


def register(data: DataSpec) -> None:
    """Make ``data`` known to torchtitan under its name; without files the library's own entry stays."""
    if not data.files:
        if data.name not in DATASETS:
            raise ValueError(f"data set {data.name!r} names no files and torchtitan knows none of that name")
        return
    loader = partial(_load, files=data.files, text_field=data.text_field)
    DATASETS[data.name] = DatasetConfig(
        path=str(Path(data.files[0]).parent), loader=loader, sample_processor=lambda sample: sample["text"]
    )


def _load(path: str, *, files: tuple[str, ...], text_field: str) -> Dataset:
    """A map-style data set with the one column ``text``; ``path`` is only what the log shows."""
    if sum(Path(file).stat().st_size for file in files) <= IN_MEMORY_BYTES:
        return Dataset.from_dict({"text": [text for file in files for text in read_texts(Path(file), text_field)]})
    table = load_dataset("json", data_files=list(files), split="train")
    if text_field not in table.column_names:
        raise ValueError(f"{files[0]} has no key {text_field!r}; name the key of the text with data.text_field=KEY")
    return table.select_columns([text_field]).rename_column(text_field, "text")


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
