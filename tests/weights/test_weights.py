"""Weights against the model, from config.json and headers alone; every fault next to a directory that passes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from harness.shapes import ModelShape
from harness.titan.assets import transformers_config
from harness.weights import HEAD, INDEX, SINGLE, expected_shapes, weight_problems

TINY = ModelShape(num_layers=2, hidden=8, num_heads=2, num_kv_heads=1, head_dim=4, ffn=16, vocab=32, tied=True)
FOUR_B = ModelShape(
    num_layers=36, hidden=2560, num_heads=32, num_kv_heads=8, head_dim=128, ffn=9728, vocab=151936, tied=True
)


def write(place: Path, shape: ModelShape, keys: dict[str, tuple[int, ...]] | None = None) -> Path:
    """A sparse checkpoint of ``shape``: true headers, no data."""
    header, end = {}, 0
    for name, size in (keys or expected_shapes(shape)).items():
        begin, end = end, end + 2 * math.prod(size)
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (place / SINGLE).open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)
    config = transformers_config(shape, cache=place / "cache") / "config.json"
    (place / "config.json").write_text(config.read_text())
    return place


@pytest.mark.parametrize("shape", [TINY, FOUR_B])
def test_a_faithful_checkpoint_passes(tmp_path: Path, shape: ModelShape) -> None:
    assert weight_problems(write(tmp_path, shape), shape) == []
    assert sum(math.prod(size) for size in expected_shapes(shape).values()) == shape.num_params()


def test_rope_theta_of_another_release(tmp_path: Path) -> None:
    write(tmp_path, TINY)
    config = json.loads((tmp_path / "config.json").read_text()) | {"rope_parameters": {"rope_theta": 5e6}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert weight_problems(tmp_path, TINY) == [
        "rope_theta is 5000000.0 in config.json, 1000000.0 in the model",
    ]


def test_missing_extra_and_transposed(tmp_path: Path) -> None:
    keys = expected_shapes(TINY) | {"model.layers.0.mlp.up_proj.weight": (8, 16), "odd": (1,), HEAD: (32, 8)}
    del keys["model.norm.weight"]
    assert weight_problems(write(tmp_path, TINY, keys), TINY) == [
        "1 missing: model.norm.weight",
        "1 extra: odd",
        "1 mis-shaped: model.layers.0.mlp.up_proj.weight is [8, 16], expected [16, 8]",
    ]


def test_an_index_with_a_shard_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path, TINY)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": SINGLE, "b": "gone.safetensors"}}))
    (problem,) = weight_problems(tmp_path, TINY)
    assert "gone.safetensors, not there" in problem


def test_no_config(tmp_path: Path) -> None:
    (write(tmp_path, TINY) / "config.json").unlink()
    (problem,) = weight_problems(tmp_path, TINY)
    assert "config.json cannot be read" in problem


def test_a_header_longer_than_its_file(tmp_path: Path) -> None:
    write(tmp_path, TINY)
    (tmp_path / SINGLE).write_bytes((2**62).to_bytes(8, "little") + b"{}")
    (problem,) = weight_problems(tmp_path, TINY)
    assert "claims a header of 4,611,686,018,427,387,904 bytes, but has 10" in problem


def test_a_file_cut_short(tmp_path: Path) -> None:
    file = write(tmp_path, TINY) / SINGLE
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - 1)
    (problem,) = weight_problems(tmp_path, TINY)
    assert "cut short" in problem
