"""A directory of Hugging Face safetensors against the model that will be built, from config.json and headers alone.

No tensor is read and no torch is needed: a safetensors file begins with the length of its header (8 bytes, little
endian) and the header itself, JSON that gives type, shape and place of every tensor.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.shapes import ModelShape

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format itself."""
ITEM_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "F8_E4M3": 1, "U8": 1, "I8": 1}
SHOWN = 3
"""Names of keys that a message lists before it counts the rest."""


@dataclass(frozen=True)
class Tensor:
    """One entry of a header; ``file`` is the name of the shard it lies in."""

    dtype: str
    shape: tuple[int, ...]
    file: str


def read_header(file: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file, without reading any.

    Raises:
        ValueError: the file is absent, cut short, or its header is none.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):  # before anything of that length is read
                raise ValueError(f"{file} claims a header of {length:,} bytes, but has {size:,}: copy it again")
            entries = json.loads(stream.read(length))
        if not isinstance(entries, dict):
            raise TypeError("no object")
        entries.pop("__metadata__", None)
        return {name: _tensor(file, name, entry, size - 8 - length) for name, entry in entries.items()}
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError) as error:
        raise ValueError(f"{file} has no safetensors header: {error}") from error


def _tensor(file: Path, name: str, entry: Any, room: int) -> Tensor:
    dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)) or end > room:
        raise ValueError(f"{file}: {name} lies at {begin}-{end} of {room:,} bytes: the file is cut short or damaged")
    if dtype in ITEM_BYTES and end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
        raise ValueError(f"{file}: {name} has {end - begin:,} bytes, which {dtype} of shape {list(shape)} does not")
    return Tensor(dtype, shape, file.name)


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint directory, single file or shards with an index.

    Raises:
        ValueError: no weights, a shard that is not there, or an index that disagrees with the shards.
    """
    index = directory / INDEX
    if not index.is_file():
        if not (directory / SINGLE).is_file():
            raise ValueError(f"{directory} has neither {SINGLE} nor {INDEX}: name a directory of safetensors")
        return read_header(directory / SINGLE)
    try:
        where = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted(set(where.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} is no safetensors index: {error}") from error
    if absent := [file for file in files if not (directory / file).is_file()]:
        raise ValueError(f"{index} names {_some(absent)}, not there: the checkpoint is incomplete")
    found: dict[str, Tensor] = {}
    for file in files:
        found |= read_header(directory / file)
    if lost := sorted(where.keys() - found.keys()):
        raise ValueError(f"{index} names tensors that no shard has: {_some(lost)}")
    return found


def expected_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in a published Qwen3 checkpoint of ``shape`` (Transformers' names).

    A tied model's ``lm_head.weight`` is not among them: it is the embedding.
    """
    q_width, kv_width = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    keys = {EMBEDDING: (shape.vocab, shape.hidden), "model.norm.weight": (shape.hidden,)}
    if not shape.tied:
        keys[HEAD] = (shape.vocab, shape.hidden)
    layer = {
        "self_attn.q_proj": (q_width, shape.hidden),
        "self_attn.k_proj": (kv_width, shape.hidden),
        "self_attn.v_proj": (kv_width, shape.hidden),
        "self_attn.o_proj": (shape.hidden, q_width),
        "self_attn.q_norm": (shape.head_dim,),
        "self_attn.k_norm": (shape.head_dim,),
        "input_layernorm": (shape.hidden,),
        "post_attention_layernorm": (shape.hidden,),
    }
    if shape.is_moe:
        layer["mlp.gate"] = (shape.num_experts, shape.hidden)
    width = shape.moe_ffn if shape.is_moe else shape.ffn
    for mlp in [f"mlp.experts.{expert}" for expert in range(shape.num_experts)] or ["mlp"]:
        layer |= {f"{mlp}.{name}": (width, shape.hidden) for name in ("gate_proj", "up_proj")}
        layer[f"{mlp}.down_proj"] = (shape.hidden, width)
    for number in range(shape.num_layers):
        keys |= {f"model.layers.{number}.{name}.weight": value for name, value in layer.items()}
    return keys


def key_problems(found: dict[str, Tensor], shape: ModelShape) -> list[str]:
    """Missing, extra and mis-shaped keys, one line a kind; empty where all fit. A tied model may store its head too."""
    expected = expected_shapes(shape)
    allowed = expected | {HEAD: expected[EMBEDDING]}
    wrong = [
        f"{name} is {list(found[name].shape)}, expected {list(size)}"
        for name, size in allowed.items()
        if name in found and found[name].shape != size
    ]
    kinds = {"missing": expected.keys() - found.keys(), "extra": found.keys() - allowed.keys(), "mis-shaped": wrong}
    return [f"{len(names)} {kind}: {_some(sorted(names))}" for kind, names in kinds.items() if names]


def config_problems(directory: Path, shape: ModelShape) -> list[str]:
    """Differences between config.json and ``shape``, each with both values.

    Raises:
        ValueError: config.json is absent or no JSON object.
    """
    try:
        config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{directory / CONFIG} cannot be read: {error.strerror}; it belongs beside weights") from error
    except ValueError as error:
        raise ValueError(f"{directory / CONFIG} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{directory / CONFIG} is no JSON object")
    rope = config.get("rope_parameters") or {}  # Transformers 5; rope_theta at the top before
    theta = rope.get("rope_theta") if isinstance(rope, dict) else None
    config["rope_theta"] = config.get("rope_theta") if theta is None else theta
    wanted: dict[str, object] = {
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_eps,
        "tie_word_embeddings": shape.tied,
    }
    if shape.is_moe:
        wanted |= {"moe_intermediate_size": shape.moe_ffn, "num_experts": shape.num_experts}
        wanted |= {"num_experts_per_tok": shape.top_k}
    else:
        wanted["intermediate_size"] = shape.ffn
    return [
        f"{name} is {config.get(name)} in {CONFIG}, {value} in the model"
        for name, value in wanted.items()
        if config.get(name) != value
    ]


def weight_problems(directory: Path, shape: ModelShape) -> list[str]:
    """Why the weights in ``directory`` are not those of a model of ``shape``; empty where they are."""
    try:
        return config_problems(directory, shape) + key_problems(read_tensors(directory), shape)
    except ValueError as error:
        return [str(error)]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
