"""A model on the Hugging Face hub as a directory on this machine: from the local cache, or downloaded into it."""

from __future__ import annotations

import re
from pathlib import Path

from harness.progress import printable
from harness.weights import BadWeights, read_tensors

REPOSITORY = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}")
SMALL = ["*.json", "*.txt", "*.jinja"]
"""Configuration, index and tokenizer: looked at before gigabytes are fetched."""
WEIGHTS = ["*.safetensors"]


def is_hub_id(path: str) -> bool:
    """Whether ``path`` has the form ``organisation/name``."""
    return REPOSITORY.fullmatch(path) is not None and ".." not in path


def cached(repository: str, revision: str | None, *, whole: bool) -> Path | None:
    """The model's directory in the local cache, named after its commit; None where it is not there, or not whole.

    A branch is what it was when it was downloaded, so that a run and its repetition train from the same weights.

    Args:
        revision: branch, tag or commit; None: main.
        whole: with all weights; else config.json is enough.
    """
    from huggingface_hub import snapshot_download

    try:
        place = Path(snapshot_download(repository, revision=revision, local_files_only=True))
        if whole:
            read_tensors(place)
    except (OSError, BadWeights):
        return None
    return place if (place / "config.json").is_file() else None


def find(repository: str, revision: str | None, *, whole: bool, download: bool = True) -> Path | None:
    """:func:`cached`, and what is missing downloaded; None where that is not allowed.

    Raises:
        ValueError: huggingface_hub is not installed, or the model cannot be had; two lines, the second one to type.
    """
    named = f"init.path={repository}" + (f" init.revision={revision}" if revision else "")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ValueError(
            f"{named} is no directory here, and huggingface_hub, which finds models of the hub, is not installed\n"
            "  pip install huggingface_hub, or name a directory: init.path=DIR"
        ) from error
    try:
        if (place := cached(repository, revision, whole=whole)) is not None or not download:
            return place
        patterns = SMALL + WEIGHTS if whole else SMALL
        return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except (OSError, ValueError) as error:  # the hub's own errors are among them
        why = printable((str(error).strip().splitlines() or [type(error).__name__])[0])[:120]
        at = f" --revision {revision}" if revision else ""
        raise ValueError(
            f"{named} is no directory here, not in the Hugging Face cache, and was not downloaded: {why}\n"
            f"  where there is a network: hf download {repository}{at}; or name a directory: init.path=DIR"
        ) from error


def commit_of(place: Path) -> str:
    """The commit of a directory in the cache, which is its name."""
    return place.name if re.fullmatch(r"[0-9a-f]{40}", place.name) else ""
