"""Where Hydra finds our sweeper and launcher: it looks for plugins in one namespace only."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


def put_into_namespace(module: str, name: str) -> None:
    """Make the imported ``module`` known under another ``name`` in Hydra's namespace, so that no package of that name
    has to lie beside ours.

    Args:
        name: e.g. ``hydra_plugins.titan_pilot``.
    """
    namespace, _, last = name.partition(".")
    try:
        package = importlib.import_module(namespace)
    except ImportError:  # no plugin is installed
        package = sys.modules[namespace] = ModuleType(namespace)
        package.__path__ = []
    sys.modules[name] = sys.modules[module]
    setattr(package, last, sys.modules[module])
