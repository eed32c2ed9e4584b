"""Secrets are kept out of whatever is written: by the name of a variable, by the shape of a value, and by known value.

Three nets, since each has holes: names miss what a library prints bare, shapes miss a password that looks like a word,
and known values (of secret variables in this process's environment) miss what others brought along.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "[redacted]"

_SECRET_NAME = re.compile(
    r"(?i)(token|secret|passw(or)?d|passphrase|credential|private_?key|api_?key|access_?key|_key$|^key$|_auth$|cookie)"
)
# Settings whose names merely look secret.
_HARMLESS_NAME = re.compile(
    r"(?i)^(tokenizers?_|.*tokenizer$|.*tokens?_(per|id|ids|type)|.*_tokens?_per_|.*tokens$|.*per_(\w+_)?token$|"
    r"(pad|eos|bos|unk|cls|sep|mask|image|audio|video)_token$|.*credentials?_file|monkey|keyboard|text_field)"
)

# In running text a name counts only where what follows it can be a secret: no number, no word of a configuration.
_NAMES_IN_TEXT = (
    r"(?:\b\w*(?:(?<!per)(?<!pad)(?<!eos)(?<!bos)(?<!unk)(?<!cls)(?<!sep)(?<!mask)_token|(?-i:_KEY)|passw(?:or)?d|"
    r"passphrase|_secret|secret_\w+|(?:api|access|secret|private|auth|encryption|signing)_?key)|\btoken|\bsecret)"
)
_PLAIN_VALUE = r"(?![-+\d.,e]+(?![\w/+=-])|(?:none|null|true|false|str|int|bool|<)\b|\[redacted\]|<)"

# What credentials look like wherever they stand: what a text must hold, in lower case, for the expression to be tried;
# the expression; what takes its place. Sources: the vendors' documented prefixes.
_SHAPES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("akia", "asia", "aroa", "aida"), r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b", MASK),  # AWS key ids
    (("hf_",), r"\bhf_[A-Za-z0-9]{16,}\b", MASK),  # Hugging Face
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"\b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{20,}\b", MASK),
    (("github_pat_",), r"\bgithub_pat_\w{20,}\b", MASK),
    (("glpat-",), r"\bglpat-[\w-]{20,}", MASK),
    (("dapi",), r"\bdapi[0-9a-f]{32}(?:-\d)?\b", MASK),  # Databricks, as used for MLflow
    (("sk-",), r"\bsk-[A-Za-z0-9_-]{20,}\b", MASK),
    (("xox",), r"\bxox[abprs]-[A-Za-z0-9-]{10,}\b", MASK),
    (("eyj",), r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}", MASK),  # JSON web tokens
    (
        ("authorization",),
        r"(?i)(\bauthorization[\"']?\s*[:=]\s*[\"']?)(?:(bearer|basic|token)\s+)?[^\s\"',;]{4,}",
        rf"\1{MASK}",
    ),
    (("bearer",), r"(?i)\b(bearer)\s+[\w.~+/=-]{16,}", rf"\1 {MASK}"),
    (("://",), r"(?i)(\b[a-z][a-z0-9+.-]*://)[^\s/@:\"']*:[^\s/\"']+@", rf"\1{MASK}@"),  # user:password@host
    (
        ("x-amz-", "sig=", "signature=", "token=", "key="),
        r"(?i)([?&](?:x-amz-signature|x-amz-credential|x-amz-security-token|sig|signature|access_token|token|key)=)"
        r"[^&\s\"']+",
        rf"\1{MASK}",
    ),
    (
        ("private key",),
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        MASK,
    ),
    # name=value and "name": "value", where the name tells
    (
        ("token", "key", "passw", "passphrase", "secret"),
        rf"(?i)({_NAMES_IN_TEXT}\b\\?[\"']?\s*[=:]\s*\\?[\"']?){_PLAIN_VALUE}[^\s\"',;&\\]{{4,}}",
        rf"\1{MASK}",
    ),
)
_TEXT = tuple((re.compile(pattern, re.S), mask) for _, pattern, mask in _SHAPES)
_BYTES = tuple((re.compile(pattern.encode(), re.S), mask.encode()) for _, pattern, mask in _SHAPES)
NEEDLES = tuple((needle, shape) for shape, (needles, _, _) in enumerate(_SHAPES) for needle in needles)
"""What announces a secret, in lower case, and which of the expressions it announces."""

SHORTEST_KNOWN = 8
"""Shorter values of secret variables are not searched for: they would hit ordinary words."""


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret: ``HF_TOKEN`` does, ``TOKENIZERS_PARALLELISM`` does not."""
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS_NAME.search(name)


_REMEMBERED: set[str] = set()


def remember(value: Any, name: str = "") -> None:
    """Learn the secrets of a nested structure (a configuration), so that they are recognised wherever they turn up."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            remember(item, str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            remember(item, name)
    elif isinstance(value, str) and is_secret_name(name):
        _remember_value(value)
    elif isinstance(value, str) and (found := re.match(r"(?i)[a-z][a-z0-9+.-]*://[^\s/@:]*:([^\s/]+)@", value)):
        _remember_value(found[1])


def _remember_value(value: str) -> None:
    if _is_worth_knowing(value):
        _REMEMBERED.add(value)
        known_secrets.cache_clear()


def _is_worth_knowing(value: str) -> bool:
    """Neither a number nor a word so short that it stands everywhere; and a path names a secret, but is none."""
    return len(value) >= SHORTEST_KNOWN and not value.isdigit() and value != MASK and not os.path.exists(value)


@functools.cache
def known_secrets() -> tuple[str, ...]:
    """Values that are secret for certain, longest first: of this process's environment, and those remembered."""
    found = {value for name, value in os.environ.items() if is_secret_name(name) and _is_worth_knowing(value)}
    return tuple(sorted(found | _REMEMBERED, key=len, reverse=True))


def redact_text(text: str) -> str:
    """``text`` without what is or looks like a credential."""
    for secret in known_secrets():
        text = text.replace(secret, MASK)
    for pattern, mask in _TEXT:
        text = pattern.sub(mask, text)
    return text


def redact_bytes(data: bytes, shapes: Iterable[int] | None = None) -> bytes:
    """``data`` without what is or looks like a credential; all other bytes stay as they are, valid UTF-8 or not.

    ``shapes`` are the expressions to try, in order, where it is known which can match (see ``NEEDLES``); None: all.
    """
    for secret in known_secrets():
        data = data.replace(secret.encode("utf-8", "surrogateescape"), MASK.encode())
    for shape in range(len(_BYTES)) if shapes is None else shapes:
        pattern, mask = _BYTES[shape]
        data = pattern.sub(mask, data)
    return data


def redact(value: Any, name: str = "") -> Any:
    """A nested structure without secrets: by the name of each key and by the shape of each string."""
    if isinstance(value, Mapping):
        return {key: redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return _redact_words(value, name)
    if isinstance(value, str):
        return MASK if value and is_secret_name(name) else redact_text(value)
    return value


def _redact_words(words: Iterable[Any], name: str) -> list[Any]:
    """A list, which may be a command line: ``--api_key VALUE`` puts the name into the word before."""
    redacted, before = [], ""
    for word in words:
        redacted.append(redact(word, before or name))
        option = isinstance(word, str) and word.startswith("-") and "=" not in word
        before = word.lstrip("-").rsplit(".", 1)[-1] if option else ""
    return redacted
