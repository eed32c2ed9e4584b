"""Kernels with one mistake: the source of a real one with one line changed, in its place for one test."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kernels import sim


def plant(monkeypatch: pytest.MonkeyPatch, module: str, right: str, wrong: str) -> None:
    """Make launches use ``module`` with every ``right`` replaced by ``wrong``; the text must be there."""
    sim.install()
    original = importlib.import_module(module)
    assert original.__file__ is not None
    source = Path(original.__file__).read_text(encoding="utf-8")
    assert right in source, f"{module} no longer has {right!r}"
    mutant = ModuleType(module)
    mutant.__file__ = original.__file__
    exec(compile(source.replace(right, wrong), f"{module} with {wrong!r}", "exec"), mutant.__dict__)
    monkeypatch.setitem(sys.modules, module, mutant)
