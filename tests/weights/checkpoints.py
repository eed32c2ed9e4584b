"""Checkpoints for tests: true headers, and either no data (sparse) or small numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from harness.shapes import ModelShape
from harness.weights import INDEX, ITEM_BYTES, SINGLE, expected_shapes

TINY = ModelShape(num_layers=2, hidden=8, num_heads=2, num_kv_heads=1, head_dim=4, ffn=16, vocab=32, tied=True)
TINY_MOE = ModelShape(
    num_layers=1, hidden=8, num_heads=2, num_kv_heads=1, head_dim=4, ffn=0, vocab=32, tied=False,
    num_experts=4, top_k=2, moe_ffn=8,
)  # fmt: skip
FOUR_B = ModelShape(
    num_layers=36, hidden=2560, num_heads=32, num_kv_heads=8, head_dim=128, ffn=9728, vocab=151936, tied=True
)
Values = dict[str, np.ndarray]


def config_of(shape: ModelShape, **changes: Any) -> dict[str, Any]:
    """config.json as Transformers 5 writes it; a change to None takes the key out."""
    config = {
        "model_type": "qwen3_moe" if shape.is_moe else "qwen3",
        "architectures": ["Qwen3MoeForCausalLM" if shape.is_moe else "Qwen3ForCausalLM"],
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "vocab_size": shape.vocab,
        "rms_norm_eps": shape.norm_eps,
        "rope_parameters": {"rope_theta": shape.rope_theta, "rope_type": "default"},
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": shape.max_positions,
        "dtype": "bfloat16",
    }
    if shape.is_moe:
        config |= {"moe_intermediate_size": shape.moe_ffn, "num_local_experts": shape.num_experts}
        config |= {"num_experts_per_tok": shape.top_k, "norm_topk_prob": True}
    else:
        config["intermediate_size"] = shape.ffn
    return {key: value for key, value in (config | changes).items() if value is not None}


def write_config(place: Path, shape: ModelShape, **changes: Any) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(config_of(shape, **changes)))


def write_sparse(place: Path, shape: ModelShape, keys: dict[str, tuple[int, ...]] | None = None) -> Path:
    """True headers of bfloat16 and no data: the file is a hole, whatever size it claims."""
    write_config(place, shape)
    header, end = {}, 0
    for name, size in (expected_shapes(shape) if keys is None else keys).items():
        begin, end = end, end + 2 * math.prod(size)
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (place / SINGLE).open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)
    return place


def values_of(shape: ModelShape, seed: int = 1) -> Values:
    """Small numbers that bfloat16 holds exactly: eighths between -4 and 4."""
    random = np.random.default_rng(seed)
    return {
        name: (random.integers(-32, 33, size) / 8).astype(np.float32) for name, size in expected_shapes(shape).items()
    }


def encode(values: np.ndarray, dtype: str) -> bytes:
    """float32 as bfloat16 (cut off) or what numpy calls it."""
    if dtype == "BF16":
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    return values.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).tobytes()


def write_file(file: Path, values: Values, dtype: str = "BF16") -> None:
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, value in values.items():
        begin, end = end, end + value.size * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": value.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    data = b"".join(encode(value, dtype) for value in values.values())
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write(
    place: Path, shape: ModelShape, values: Values | None = None, *, dtype: str = "BF16", shards: int = 1, **config: Any
) -> Path:
    """A checkpoint with values; several shards come with an index."""
    write_config(place, shape, **config)
    values = values_of(shape) if values is None else values
    if shards == 1:
        write_file(place / SINGLE, values, dtype)
        return place
    names, where = list(values), {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {name: values[name] for name in names[number::shards]}
        write_file(place / file, part, dtype)
        where |= dict.fromkeys(part, file)
    (place / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return place
