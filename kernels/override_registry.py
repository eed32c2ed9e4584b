"""The one place that knows where torchtitan keeps its override registry.

Releases differ: PyPI 0.2.x has none, 0.3.0 has ``torchtitan.config.override``. The Neuron fork, whose code we could not
read, may have it under another name; what is tried is listed here, and nothing else is done about it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLACES = (
    "torchtitan.config.override",
    "torchtitan.config",
    "torchtitan.overrides",
    "torchtitan_neuron.config.override",
    "torchtitan_neuron.overrides",
)


class NoOverrideRegistry(ImportError):
    """The installed torchtitan cannot be given other modules by configuration."""


@dataclass(frozen=True)
class Registry:
    """torchtitan's decorator for overrides, and its helper that derives one configuration from another."""

    override: Callable[..., Callable[[Callable[..., Any]], Callable[..., Any]]]
    derive: Callable[..., Any]
    place: str


def find() -> Registry:
    """Import the registry.

    Raises:
        NoOverrideRegistry: says where it was looked for and what to do instead.
    """
    for place in PLACES:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is not None and place.startswith(error.name):
                continue
            raise
        override, derive = getattr(module, "override", None), getattr(module, "derive", None)
        if callable(override) and callable(derive):
            return Registry(override, derive, place)
    raise NoOverrideRegistry(_explanation())


def why_no_registry() -> str | None:
    """Why modules cannot be swapped with what is installed, without importing it; None if they probably can."""
    for place in PLACES:
        package, _, rest = place.partition(".")
        spec = importlib.util.find_spec(package)
        if rest.endswith("override") and spec is not None and spec.submodule_search_locations:
            for root in spec.submodule_search_locations:
                if Path(root, *rest.split(".")).with_suffix(".py").is_file():
                    return None
    return _explanation()


def _explanation() -> str:
    try:
        installed = f"torchtitan {importlib.metadata.version('torchtitan')}"
    except importlib.metadata.PackageNotFoundError:
        installed = "torchtitan (not installed)"
    return (
        f"{installed} has no registry of overrides, so no kernel can be swapped in: looked for {', '.join(PLACES)}. "
        "Use kernel=baseline, or torchtitan >= 0.3.0"
    )
