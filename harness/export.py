"""The export of a run: weights with everything that Transformers needs beside them, and a verified copy elsewhere."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.shapes import ModelShape
from harness.titan.assets import transformers_values

CONFIG = "config.json"
EXPORT = "export"
"""Name in the run directory."""
GENERATION = "generation_config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)
TORCH_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
CHUNK = 1 << 22


def collect(dump: Path, step: int, run: Path) -> Path:
    """Move torchtitan's last checkpoint to ``run/export``, without the shards that it was put together from.

    Raises:
        OSError: the training left none.
    """
    made, export = dump / f"step-{step}", run / EXPORT
    shutil.rmtree(made / "sharded", ignore_errors=True)
    shutil.move(made, export)  # also from another file system
    with contextlib.suppress(OSError):  # full states that were saved on the way stay
        dump.rmdir()
    return export


def add_assets(export: Path, shape: ModelShape, *, dtype: str, tokenizer: Path, source: Path | None) -> None:
    """Write config.json, the tokenizer's files and generation_config.json beside the weights.

    Args:
        dtype: of the exported weights, as torch calls it.
        tokenizer: directory of the one that was trained with.
        source: directory that the weights came from; what its config.json says beyond ``shape`` stays.
    """
    config = export_config(shape, dtype=dtype, source=source)
    write_json(export / CONFIG, config)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, export / name)
    if source is not None and (source / GENERATION).is_file():
        shutil.copyfile(source / GENERATION, export / GENERATION)
    else:
        named = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in config}
        write_json(export / GENERATION, named)


def export_config(shape: ModelShape, *, dtype: str, source: Path | None) -> dict[str, Any]:
    """config.json of what was trained: the source's where there is one, with the values of ``shape`` in any case."""
    values = transformers_values(shape)
    if source is None:
        return values | {"dtype": dtype}
    config: dict[str, Any] = json.loads((source / CONFIG).read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    if isinstance(config.get("rope_parameters"), dict):  # Transformers 5; at the top before
        config["rope_parameters"] = config["rope_parameters"] | {"rope_theta": values.pop("rope_theta")}
    own = ("bos_token_id", "eos_token_id")
    return config | {name: value for name, value in values.items() if name not in own} | {"dtype": dtype}


def write_json(file: Path, value: object) -> None:
    file.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


# -- a copy elsewhere --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Copied:
    """One file of a copy that was read back."""

    name: str
    size: int
    sha256: str


def refuse_copy(url: str) -> None:
    """Whether this machine can write to such a place at all, before anything is spent.

    Raises:
        ValueError: an unknown kind of place, or one whose package is not installed.
    """
    import fsspec

    try:
        remote, root = fsspec.core.url_to_fs(url)
        if "file" in remote.protocol:  # a name or several
            _refuse_directory(Path(root))
    except (ImportError, ValueError, OSError) as error:
        shown = f"{url.split('://')[0]}://..." if "://" in url else url
        raise ValueError(f"export.copy_to={shown} cannot be used: {str(error).splitlines()[0]}") from error


def _refuse_directory(place: Path) -> None:
    """Raises ValueError where a directory of this machine cannot be made."""
    above = next(item for item in (place, *place.parents) if os.path.lexists(item))
    if not above.is_dir():
        raise ValueError(f"{above} is no directory")
    if not os.access(above, os.W_OK):
        raise ValueError(f"{above} cannot be written to")


def copy_verified(export: Path, url: str) -> list[Copied]:
    """Copy every file of ``export`` below ``url``, read each back, and compare size and SHA-256.

    Raises:
        OSError: a file did not arrive as it is; the message names it.
    """
    import fsspec

    remote, root = fsspec.core.url_to_fs(url)
    remote.makedirs(root, exist_ok=True)
    done = []
    for file in sorted(file for file in export.rglob("*") if file.is_file()):
        name = file.relative_to(export).as_posix()
        target = f"{root.rstrip('/')}/{name}"
        if "/" in name:
            remote.makedirs(target.rpartition("/")[0], exist_ok=True)
        remote.put_file(str(file), target)
        with file.open("rb") as stream:
            wanted = _digest(name, _chunks(stream))
        remote.invalidate_cache()
        with remote.open(target, "rb") as stream:
            found = _digest(name, _chunks(stream))
        if found != wanted:
            raise OSError(
                f"{name} arrived as {found.size:,} bytes, SHA-256 {found.sha256[:12]}, "
                f"not {wanted.size:,}, {wanted.sha256[:12]}"
            )
        done.append(found)
    return done


def _digest(name: str, chunks: Iterator[bytes]) -> Copied:
    hasher, size = hashlib.sha256(), 0
    for chunk in chunks:
        hasher.update(chunk)
        size += len(chunk)
    return Copied(name, size, hasher.hexdigest())


def _chunks(stream: Any) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK):
        yield chunk


def manifest(copied: list[Copied], url: str) -> dict[str, Any]:
    """The record of a copy."""
    return {"copy_to": url, "files": [asdict(file) for file in copied], "bytes": sum(file.size for file in copied)}
