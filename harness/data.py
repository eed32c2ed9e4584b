"""Where training text and tokenizer come from, resolved to absolute files before anything is started (no torch)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

KINDS = ("pydoc", "c4_test", "local")


@dataclass
class DataConfig:
    """Mirrors ``conf/data/*.yaml``; usable as a Hydra structured config."""

    name: str = "pydoc"
    kind: str = "pydoc"
    """pydoc: Python's own help topics, carried by every Python; c4_test: the sample in a torchtitan checkout;
    local: a directory of .jsonl files or one such file."""
    path: str | None = None
    """Local text: one JSON object per line. Not used by pydoc; by c4_test only instead of ``checkout``."""
    text_field: str = "text"
    """Key that holds the text of a line."""
    tokenizer: str | None = None
    """Directory with tokenizer.json and tokenizer_config.json; null: trained on the data (rehearsal), or the
    checkout's test tokenizer (c4_test)."""
    checkout: str | None = None
    """Directory of a torchtitan source checkout, whose tests/assets hold c4_test and a tokenizer."""


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """A data set ready to be read: absolute files, in the order in which they are read."""

    name: str
    files: tuple[str, ...]
    """Empty for pydoc, whose corpus is written on first use."""
    text_field: str
    tokenizer: str | None
    """Directory, or None: a byte-level BPE has to be trained on the text."""


def resolve(config: DataConfig, *, base: Path | None = None) -> TextSource:
    """Check the data's configuration and name the files.

    Args:
        base: directory that relative names start from; the working directory if None.

    Raises:
        ValueError: an unknown kind or a file that is not there, with what to type.
    """
    base = base or Path.cwd()
    if config.kind not in KINDS:
        raise ValueError(f"data.kind is {config.kind!r}, expected one of {', '.join(KINDS)}")
    checkout = base / config.checkout if config.checkout else None
    tokenizer = base / config.tokenizer if config.tokenizer else None
    if config.kind == "pydoc":
        return TextSource(name=config.name, files=(), text_field="text", tokenizer=_tokenizer_dir(tokenizer))
    path = base / config.path if config.path else None
    if config.kind == "c4_test":
        if checkout is None and path is None:
            raise ValueError(
                "data=c4_test reads tests/assets of a torchtitan source checkout (the wheel has none): "
                "name it with data.checkout=DIR or TORCHTITAN_DIR=DIR"
            )
        if checkout is not None:
            path = path or checkout / "tests" / "assets" / "c4_test"
            tokenizer = tokenizer or checkout / "tests" / "assets" / "tokenizer"
    if path is None:
        raise ValueError("data=local needs text: name a directory of .jsonl files or one file with data.path=PATH")
    return TextSource(
        name=config.name, files=_text_files(path), text_field=config.text_field, tokenizer=_tokenizer_dir(tokenizer)
    )


def _text_files(path: Path) -> tuple[str, ...]:
    """The .jsonl or .json files that a path names, absolute; sorted by name, so that every rank sees one order."""
    if path.is_file():
        return (str(path.resolve()),)
    if not path.is_dir():
        raise ValueError(f"no such file or directory: {path} (data.path)")
    files = sorted(file for pattern in ("*.jsonl", "*.json") for file in path.glob(pattern))
    if not files:
        raise ValueError(f"{path} holds no .jsonl or .json file (data.path)")
    return tuple(str(file.resolve()) for file in files)


def _tokenizer_dir(path: Path | None) -> str | None:
    if path is None:
        return None
    if not (path / "tokenizer.json").is_file():
        raise ValueError(f"{path} is no tokenizer directory: it holds no tokenizer.json (data.tokenizer)")
    return str(path.resolve())
