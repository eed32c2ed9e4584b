"""Hydra's errors in a line or two: what is wrong, what was expected, what to type."""

from __future__ import annotations

import dataclasses
import re
import typing

from harness.schema import PilotConfig


def explain(error: BaseException) -> str:
    """A composition error of Hydra or OmegaConf for a person."""
    from hydra.errors import MissingConfigException
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    first, *rest = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if isinstance(error, MissingConfigException) and error.options:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={option} does not exist: choose {group}={'|'.join(error.options)}"
    if first.startswith("You must specify"):
        group = first.split("'")[1]
        return f"{group} is missing: say {group}={'|'.join(line for line in rest if not line.endswith(':'))}"
    if (
        found := re.search(r"Environment variable '(\w+)' not found.*full_key: ([\w.]+)", str(error), re.S)
    ) is not None:
        return f"{found.group(2)} is the environment variable {found.group(1)}, which is not set: export it first"
    cause = error.__cause__
    if isinstance(cause, (ConfigAttributeError, ConfigKeyError)) and cause.full_key:
        return f"there is no key {cause.full_key}: {_siblings(cause.full_key)}"
    detail = str(cause).splitlines()[0] if cause is not None else " ".join(rest[:1])
    return f"{first} {detail}".replace("Error merging override ", "").strip()


def _siblings(key: str) -> str:
    """The keys that exist where ``key`` was looked for."""
    *parents, _ = key.split(".")
    node: type = PilotConfig
    known: list[str] = []
    for name in parents:
        kind = typing.get_type_hints(node).get(name)
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            break
        node, known = kind, [*known, name]
    names = ", ".join(field.name for field in dataclasses.fields(node))
    return f"{'.'.join(known) or 'the configuration'} has {names}"
