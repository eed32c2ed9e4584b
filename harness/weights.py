"""A directory of Hugging Face safetensors against the model that will be built, from config.json and headers alone.

No tensor is read and no torch is needed: a safetensors file begins with the length of its header (8 bytes, little
endian) and the header itself, JSON that gives type, shape and place of every tensor. The files are not trusted: what
they claim is held against what is there before anything is read or allocated, and names are printed without control
characters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from harness.model_config import differences, read_config
from harness.progress import printable
from harness.shapes import ModelShape

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format itself."""
MAX_INDEX_BYTES = 100_000_000
MAX_KEYS = 1_000_000
"""More tensors than any Qwen3 has (the largest, 94 layers of 128 experts, has 37,000): a config.json that asks for
more is not believed."""
ITEM_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "U8", "I8", "BOOL"), 1),
}
SHOWN = 3
"""Names of keys that a message lists before it counts the rest."""


class BadWeights(ValueError):
    """Weights that cannot be read; ``check`` is the name of the check that found it."""

    check = "headers"


class BadIndex(BadWeights):
    """No index, or one that cannot be followed: no JSON, or a way out of the directory."""

    check = "index"


class MissingShard(BadWeights):
    """A file of the checkpoint that is not there."""

    check = "shards"


class BadHeader(BadWeights):
    """A file whose header is none, or does not describe the file it stands in."""


@dataclass(frozen=True)
class Tensor:
    """One entry of a header; ``file`` is the name of the shard it lies in, at bytes ``begin`` to ``end``."""

    dtype: str
    shape: tuple[int, ...]
    file: str
    begin: int = 0
    end: int = 0

    @property
    def count(self) -> int:
        """Number of its elements."""
        return math.prod(self.shape)


def read_header(file: Path, name: str | None = None) -> dict[str, Tensor]:
    """The tensors of one safetensors file, without reading any.

    Args:
        name: what the tensors say of where they lie; the file's own name if None.

    Raises:
        BadHeader: the file is absent, cut short, or its header is none.
    """
    shown = printable(str(file))
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):  # before anything of that length is read
                raise BadHeader(f"{shown} claims a header of {length:,} bytes, but has {size:,}: copy it again")
            entries = json.loads(stream.read(length))
        if not isinstance(entries, dict):
            raise TypeError("no object")
        entries.pop("__metadata__", None)
        found = {key: _tensor(key, entry, 8 + length, size, name or file.name) for key, entry in entries.items()}
        _refuse_gaps(found, 8 + length, size)
    except BadHeader:
        raise
    except OSError as error:
        raise BadHeader(f"{shown} cannot be read: {error.strerror}") from error
    except _Damaged as error:
        raise BadHeader(f"{shown}: {error}") from error
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise BadHeader(f"{shown} has no safetensors header: {printable(str(error))[:100]}") from error
    return found


class _Damaged(ValueError):
    """What is wrong within a file; read_header adds its name."""


def _tensor(name: str, entry: Any, start: int, size: int, file: str) -> Tensor:
    """One entry, its place counted from the beginning of the file; ``start`` is where the tensors begin."""
    dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if not all(type(number) is int and 0 <= number < 2**63 for number in (*shape, begin, end)) or end > size - start:
        raise _Damaged(f"{_short(name)} lies at {begin}-{end} of {size - start:,} bytes: it is cut short or damaged")
    if dtype in ITEM_BYTES and end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
        raise _Damaged(f"{_short(name)} has {end - begin:,} bytes, which {dtype} of shape {list(shape)} does not")
    return Tensor(_short(str(dtype)), shape, file, start + begin, start + end)


def _refuse_gaps(tensors: dict[str, Tensor], start: int, size: int) -> None:
    """The format wants every byte to belong to exactly one tensor; its readers refuse anything else."""
    place = start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != place:
            raise _Damaged(f"{_short(name)} begins at {tensor.begin:,}, what precedes it ends at {place:,}: damaged")
        place = tensor.end
    if place != size:
        raise _Damaged(f"{size - place:,} bytes follow the last tensor: damaged, or not written to its end")


def read_index(directory: Path) -> dict[str, str]:
    """Which file each tensor lies in, as the index says; a directory with a single file needs none.

    Raises:
        BadIndex: there is none, it cannot be understood, or it names a file outside the directory.
        MissingShard: it names a file that is not there.
    """
    index, shown = directory / INDEX, printable(str(directory / INDEX))
    try:
        if index.stat().st_size > MAX_INDEX_BYTES:
            raise BadIndex(f"{shown} has {index.stat().st_size:,} bytes: no index is that long")
        where = json.loads(index.read_bytes())["weight_map"]
        files = sorted(set(where.values()))
        outside = [file for file in files if not _is_inside(file)]
    except OSError as error:
        raise BadIndex(f"{shown} cannot be read: {error.strerror}") from error
    except BadIndex:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadIndex(f"{shown} is no safetensors index: {printable(str(error))[:100]}") from error
    if outside:
        raise BadIndex(f"{shown} names {some(outside)}, outside its directory: refused, do not use it")
    if absent := [file for file in files if not (directory / file).is_file()]:
        raise MissingShard(f"{shown} names {some(absent)}, not there: the checkpoint is incomplete, copy it again")
    return where


def _is_inside(file: str) -> bool:
    """Whether a name from an index stays in its directory; a link there may lead out, as in the hub's cache."""
    path = PurePosixPath(file)
    return bool(file) and "\0" not in file and not path.is_absolute() and ".." not in path.parts


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint directory, single file or shards with an index.

    Raises:
        BadWeights: no weights, a shard that is not there, a damaged one, or an index that disagrees with the shards.
    """
    if not (directory / INDEX).is_file():
        if not (directory / SINGLE).is_file():
            raise BadIndex(_no_weights(directory))
        return read_header(directory / SINGLE)
    where = read_index(directory)
    found: dict[str, Tensor] = {}
    for file in sorted(set(where.values())):
        tensors = read_header(directory / file, file)
        if twice := sorted(tensors.keys() & found.keys()):
            raise BadIndex(f"{printable(str(directory))} has two of {some(twice)}: which one counts is not defined")
        found |= tensors
    shown = printable(str(directory / INDEX))
    if lost := sorted(where.keys() - found.keys()):
        raise BadIndex(f"{shown} names tensors that no shard has: {some(lost)}")
    if moved := sorted(name for name, file in where.items() if found[name].file != file):
        raise BadIndex(f"{shown} names the wrong shard for {some(moved)}")
    return found


def _no_weights(directory: Path) -> str:
    """Why there is nothing to read, and what to do about it."""
    shown = printable(str(directory))
    if (directory / ".metadata").is_file():
        return (
            f"{shown} is a training state of torchtitan, not safetensors: export it with --checkpoint.last_save_in_hf"
        )
    if shards := sorted(directory.glob("*.safetensors")):
        return f"{shown} has {len(shards)} safetensors files, but neither {SINGLE} nor {INDEX}: copy the index too"
    inner = directory / "export"  # a run's
    what = f"try {printable(str(inner))}" if inner.is_dir() else "name a directory of safetensors"
    return f"{shown} has neither {SINGLE} nor {INDEX}: {what}"


def expected_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in a published Qwen3 checkpoint of ``shape`` (Transformers' names).

    A tied model's ``lm_head.weight`` is not among them: it is the embedding.

    Raises:
        ValueError: more tensors than any Qwen3 has.
    """
    if shape.num_layers * (11 + 3 * shape.num_experts) > MAX_KEYS:
        raise ValueError(f"{shape.num_layers:,} layers of {shape.num_experts:,} experts: no Qwen3 has that many")
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


@dataclass(frozen=True)
class Keys:
    """How the keys of a checkpoint differ from those of a model."""

    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    misshaped: tuple[str, ...] = ()
    """Each as "NAME is [2, 3], expected [3, 2]"."""

    def problems(self) -> list[str]:
        """One line a kind, the first names of each."""
        kinds = {"missing": self.missing, "extra": self.extra, "mis-shaped": self.misshaped}
        return [f"{len(names)} {kind}: {some(names)}" for kind, names in kinds.items() if names]


def compare_keys(found: dict[str, Tensor], shape: ModelShape) -> Keys:
    """Missing, extra and mis-shaped keys. A tied model may store its head too."""
    expected = expected_shapes(shape)
    allowed = expected | {HEAD: expected[EMBEDDING]}
    wrong = [
        f"{name} is {list(found[name].shape)}, expected {list(size)}{_transposed(found[name].shape, size)}"
        for name, size in sorted(allowed.items())
        if name in found and found[name].shape != size
    ]
    return Keys(
        missing=tuple(sorted(expected.keys() - found.keys())),
        extra=tuple(sorted(found.keys() - allowed.keys())),
        misshaped=tuple(wrong),
    )


def _transposed(found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    return " (transposed)" if found == expected[::-1] else ""


def key_problems(found: dict[str, Tensor], shape: ModelShape) -> list[str]:
    """Missing, extra and mis-shaped keys, one line a kind; empty where all fit."""
    return compare_keys(found, shape).problems()


def weight_problems(directory: Path, shape: ModelShape) -> list[str]:
    """Why the weights in ``directory`` are not those of a model of ``shape``; empty where they are."""
    try:
        wrong = [str(difference) for difference in differences(read_config(directory), shape)]
        return wrong + key_problems(read_tensors(directory), shape)
    except ValueError as error:
        return [str(error)]


def some(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(_short(name) for name in names[:SHOWN]) + more


def _short(name: str) -> str:
    return printable(name[:200])
