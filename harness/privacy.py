"""Secrets are kept out of whatever is written: redacted by the name of a variable and by the shape of a value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "[redacted]"

_SECRET_NAME = re.compile(
    r"(?i)(token|secret|passw(or)?d|passphrase|credential|private_?key|api_?key|access_?key|_key$|^key$|_auth$|cookie)"
)
# Settings whose names merely look secret.
_HARMLESS_NAME = re.compile(r"(?i)^(tokenizers?_|.*tokenizer$|.*_tokens$|.*per_token$|monkey|keyboard|text_field)")

# What credentials look like wherever they stand. Sources: the vendors' documented prefixes.
_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b"), MASK),  # AWS key ids
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}\b"), MASK),  # Hugging Face
    (re.compile(r"\b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{20,}\b"), MASK),
    (re.compile(r"\bgithub_pat_\w{20,}\b"), MASK),
    (re.compile(r"\bdapi[0-9a-f]{32}\b"), MASK),  # Databricks, as used for MLflow
    (re.compile(r"\bsk-[A-Za-z0-9_-]{20,}\b"), MASK),
    (re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}\b"), MASK),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}\b"), MASK),  # JSON web tokens
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {MASK}"),
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@:]*:[^\s/@]+@", re.I), rf"\1{MASK}@"),  # user:password@host
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), MASK),
    # name=value and "name": "value", where the name tells
    (
        re.compile(
            r"(?i)(\b\w*(?:_token|_secret|secret_\w*|passw(?:or)?d|api_?key|access_?key|_key)\b[\"']?\s*[=:]\s*[\"']?)"
            r"([^\s\"',;&]{6,})"
        ),
        rf"\1{MASK}",
    ),
)


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret: ``HF_TOKEN`` does, ``TOKENIZERS_PARALLELISM`` does not."""
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS_NAME.search(name)


def redact_text(text: str) -> str:
    """``text`` without what looks like a credential."""
    for pattern, mask in _SHAPES:
        text = pattern.sub(mask, text)
    return text


def redact(value: Any, name: str = "") -> Any:
    """A nested structure without secrets: by the name of each key and by the shape of each string."""
    if isinstance(value, Mapping):
        return {key: redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(item, name) for item in value]
    if isinstance(value, str):
        return MASK if value and is_secret_name(name) else redact_text(value)
    return value
