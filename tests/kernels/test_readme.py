"""The example of kernels/README.md is executed as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from kernels import backend  # noqa: E402
from kernels.check import suites  # noqa: E402

README = Path(__file__).resolve().parents[2] / "kernels" / "README.md"


def test_the_example_runs_and_passes_its_own_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "SUITES", dict(suites.SUITES))
    example = next(
        block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "nki.jit" in block
    )
    module = ModuleType("readme_example")
    monkeypatch.setitem(sys.modules, "readme_example", module)  # torch reads an op's annotations in its module
    with backend.isolated("simulator", lnc=2):
        exec(compile(example, str(README), "exec"), module.__dict__)
    checks = module.__dict__["checks"]
    assert {(check.what, check.dtype, check.lnc) for check in checks} == {
        (what, dtype, lnc)
        for what in ("forward", "grad x", "calls missing")
        for dtype in ("float32", "bfloat16")
        for lnc in (1, 2)
    }
    assert all(check.passed for check in checks)


def test_every_command_and_file_named_exists() -> None:
    for readme in (README, README.parent / "sim" / "README.md"):
        for name in re.findall(r"`([\w/]+\.py)`", readme.read_text()):
            assert (README.parent / name).is_file(), name
        for link in re.findall(r"\]\(([^)#]+)\)", readme.read_text()):
            assert (readme.parent / link).exists(), link
