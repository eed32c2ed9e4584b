"""Weights against the model, from headers alone; every fault next to a directory that passes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from harness.weights import (
    HEAD,
    INDEX,
    SINGLE,
    BadHeader,
    BadIndex,
    MissingShard,
    expected_shapes,
    read_header,
    read_tensors,
    weight_problems,
)
from tests.conftest import ROOT
from tests.weights.checkpoints import FOUR_B, TINY, TINY_MOE, write, write_config, write_sparse


@pytest.mark.parametrize("shape", [TINY, TINY_MOE, FOUR_B], ids=["dense", "experts", "4B"])
def test_a_faithful_checkpoint_passes(tmp_path: Path, shape) -> None:
    assert weight_problems(write_sparse(tmp_path, shape), shape) == []
    assert sum(math.prod(size) for size in expected_shapes(shape).values()) == shape.num_params()


def test_the_key_check_of_4b_reads_no_tensor(tmp_path: Path) -> None:
    """8 GB of holes: the file has almost no blocks before, and none more after."""
    file = write_sparse(tmp_path, FOUR_B) / SINGLE
    assert file.stat().st_size > 8e9
    assert file.stat().st_blocks * 512 < 1e6
    tensors = read_tensors(tmp_path)
    assert len(tensors) == 36 * 11 + 2
    assert max(tensor.end for tensor in tensors.values()) == file.stat().st_size


def test_the_key_check_of_4b_takes_little_memory(tmp_path: Path) -> None:
    """In a process of its own, whose highest resident size is the kernel's figure (VmHWM, kB)."""
    code = (
        "import sys; from tests.weights.checkpoints import FOUR_B; from harness.weights import weight_problems\n"
        "print(weight_problems(__import__('pathlib').Path(sys.argv[1]), FOUR_B))\n"
        "print(*[line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')])"
    )
    if not Path("/proc/self/status").is_file():
        pytest.skip("no /proc here")
    place = write_sparse(tmp_path, FOUR_B)
    done = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True, check=True, cwd=ROOT)
    problems, kilobytes = done.stdout.split("\n")[:2]
    assert problems == "[]"
    assert 1_000 < int(kilobytes) < 200_000


def test_missing_extra_and_transposed(tmp_path: Path) -> None:
    keys = expected_shapes(TINY) | {"model.layers.0.mlp.up_proj.weight": (8, 16), "odd": (1,), HEAD: (32, 8)}
    del keys["model.norm.weight"]
    assert weight_problems(write_sparse(tmp_path, TINY, keys), TINY) == [
        "1 missing: model.norm.weight",
        "1 extra: odd",
        "1 mis-shaped: model.layers.0.mlp.up_proj.weight is [8, 16], expected [16, 8] (transposed)",
    ]


def test_shards(tmp_path: Path) -> None:
    assert weight_problems(write(tmp_path, TINY, shards=3), TINY) == []
    tensors = read_tensors(tmp_path)
    assert {tensor.file for tensor in tensors.values()} == {f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)}


def test_a_shard_that_is_gone(tmp_path: Path) -> None:
    (write(tmp_path, TINY, shards=3) / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(MissingShard, match="names model-00002-of-00003.safetensors, not there"):
        read_tensors(tmp_path)


def test_shards_without_their_index(tmp_path: Path) -> None:
    (write(tmp_path, TINY, shards=2) / INDEX).unlink()
    with pytest.raises(BadIndex, match="2 safetensors files, but neither .*: copy the index too"):
        read_tensors(tmp_path)


@pytest.mark.parametrize("file", ["../other.safetensors", "/etc/passwd", "a/../../x", "", "x\0.safetensors", "."])
def test_an_index_leads_nowhere_else(tmp_path: Path, file: str) -> None:
    write(tmp_path / "own", TINY)
    write(tmp_path, TINY)
    (tmp_path / SINGLE).rename(tmp_path / "other.safetensors")
    (tmp_path / "own" / INDEX).write_text(json.dumps({"weight_map": {"a": file}}))
    with pytest.raises((BadIndex, MissingShard)) as error:
        read_tensors(tmp_path / "own")
    assert "outside its directory" in str(error.value) or file == "."


def test_a_link_out_of_the_directory_is_followed_as_the_hubs_cache_needs(tmp_path: Path) -> None:
    write(tmp_path / "blobs", TINY)
    write_config(tmp_path / "snapshot", TINY)
    (tmp_path / "snapshot" / SINGLE).symlink_to("../blobs/" + SINGLE)
    assert weight_problems(tmp_path / "snapshot", TINY) == []


@pytest.mark.parametrize("index", [[], {}, {"weight_map": []}, {"weight_map": {"a": 1}}, {"weight_map": {"a": ["b"]}}])
def test_an_index_that_is_none(tmp_path: Path, index: object) -> None:
    (write(tmp_path, TINY) / INDEX).write_text(json.dumps(index))
    with pytest.raises(BadIndex, match="is no safetensors index"):
        read_tensors(tmp_path)


def test_an_index_that_disagrees_with_its_shards(tmp_path: Path) -> None:
    index = write(tmp_path, TINY, shards=2) / INDEX
    where = json.loads(index.read_text())["weight_map"]
    swapped = where | {"model.norm.weight": next(f for f in where.values() if f != where["model.norm.weight"])}
    index.write_text(json.dumps({"weight_map": swapped}))
    with pytest.raises(BadIndex, match="the wrong shard for model.norm.weight"):
        read_tensors(tmp_path)
    index.write_text(json.dumps({"weight_map": where | {"more": SINGLE.replace("model", "model-00001-of-00002")}}))
    with pytest.raises(BadIndex, match="tensors that no shard has: more"):
        read_tensors(tmp_path)


def test_a_torchtitan_training_state_is_recognised(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(b"")
    with pytest.raises(BadIndex, match="training state of torchtitan, not safetensors"):
        read_tensors(tmp_path)


def test_a_header_longer_than_its_file_is_not_allocated(tmp_path: Path) -> None:
    (write_sparse(tmp_path, TINY) / SINGLE).write_bytes((2**62).to_bytes(8, "little") + b"{}")
    (problem,) = weight_problems(tmp_path, TINY)
    assert "claims a header of 4,611,686,018,427,387,904 bytes, but has 10" in problem


def test_a_header_longer_than_the_format_allows_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / SINGLE).open("wb") as stream:
        stream.write((3 * 10**9).to_bytes(8, "little"))
        stream.truncate(4 * 10**9)
    with pytest.raises(BadHeader, match="claims a header of 3,000,000,000 bytes"):
        read_header(tmp_path / SINGLE)


def header(tmp_path: Path, text: bytes, data: bytes = b"") -> Path:
    (tmp_path / SINGLE).write_bytes(len(text).to_bytes(8, "little") + text + data)
    return tmp_path / SINGLE


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[]", "no safetensors header: no object"),
        (b"{", "no safetensors header"),
        (b"\xff\xfe", "no safetensors header"),
        (b"[" * 100_000, "no safetensors header"),
        (b'{"a": {"dtype": "F32", "shape": [1]}}', "no safetensors header: 'data_offsets'"),
        (b'{"a": {"dtype": [], "shape": [1], "data_offsets": [0, 4]}}', "no safetensors header"),
        (b'{"a": {"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}}', "a lies at 0-4 of 4 bytes"),
        (b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', "a lies at 0-4 of 4 bytes"),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}', "a lies at 0-8 of 4 bytes: it is cut short"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "a has 4 bytes, which F32 of shape [2]"),
        (b'{"a": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}}', "2 bytes follow the last tensor"),
        (
            b'{"a": {"dtype": "F16", "shape": [1], "data_offsets": [2, 4]}}',
            "a begins at 71, what precedes it ends at 69",
        ),
        (b'{"a": {"dtype": "F32", "shape": [%s], "data_offsets": [0, 4]}}' % (b"9" * 5000), "no safetensors header"),
    ],
)
def test_damaged_headers(tmp_path: Path, text: bytes, why: str) -> None:
    with pytest.raises(BadHeader) as error:
        read_header(header(tmp_path, text, b"\0" * 4))
    assert why in str(error.value)


def test_a_sound_header_of_the_same_form(tmp_path: Path) -> None:
    file = header(tmp_path, b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', b"\0" * 4)
    (tensor,) = read_header(file).values()
    assert (tensor.dtype, tensor.shape, tensor.end - tensor.begin) == ("F32", (1,), 4)


def test_a_file_cut_short(tmp_path: Path) -> None:
    file = write_sparse(tmp_path, TINY) / SINGLE
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - 1)
    (problem,) = weight_problems(tmp_path, TINY)
    assert "cut short" in problem


def test_names_do_not_drive_the_terminal(tmp_path: Path) -> None:
    keys = expected_shapes(TINY) | {"\x1b[31mred\x07": (1,)}
    (problem,) = weight_problems(write_sparse(tmp_path, TINY, keys), TINY)
    assert problem == "1 extra:  [31mred "


def test_a_config_that_asks_for_a_billion_layers_is_not_believed(tmp_path: Path) -> None:
    from dataclasses import replace

    with pytest.raises(ValueError, match="1,000,000,000 layers"):
        expected_shapes(replace(TINY, num_layers=10**9))
