"""What importing costs and needs: pure parts without torch, NKI only where it is asked for, never a false ``nki``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernels.processes import python

PURE = ("kernels", "kernels.limits", "kernels.backend", "kernels.plan", "kernels.check.cli", "kernels.check.shapes")
HEAVY = ("torch", "nki", "torchtitan", "transformers")


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_neither_torch_nor_nki(module: str) -> None:
    done = python(f"import {module}, sys; print([name for name in {HEAVY} if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def placeholder(folder: Path, name: str) -> None:
    """What the public index has under the names of the Neuron packages."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text('raise ImportError("WRONG PACKAGE: this is a placeholder")\n')


def test_a_placeholder_does_not_count_as_the_official_package(tmp_path: Path) -> None:
    placeholder(tmp_path, "nki")
    done = python("from kernels import sim; sim.install(); import nki; print(nki.__simulator__)", path=tmp_path)
    assert done.stdout.strip() == "True", done.stderr


def test_the_simulator_does_not_take_the_place_of_the_official_package(tmp_path: Path) -> None:
    (tmp_path / "nki.py").write_text("def simulate(kernel): ...\n")
    done = python(
        """
from kernels import sim
try:
    sim.install()
except RuntimeError as error:
    print(error)
import nki
print(hasattr(nki, "__simulator__"))
""",
        path=tmp_path,
    )
    assert done.stdout.splitlines() == ["the official nki package is installed here: use its own nki.simulate", "False"]


def test_nothing_is_named_nki_until_it_is_asked_for() -> None:
    done = python("import kernels.sim.isa, kernels.sim.language, kernels.sim.runtime; import nki")
    assert "No module named 'nki'" in done.stderr


def test_a_submodule_that_is_not_simulated_is_not_found() -> None:
    done = python("from kernels import sim; sim.install(); import nki.collectives")
    assert "No module named 'nki.collectives'" in done.stderr


def test_neuron_is_not_believed_in_when_only_placeholders_are_installed(tmp_path: Path) -> None:
    placeholder(tmp_path, "nki")
    placeholder(tmp_path, "torch_neuronx")
    done = python(
        """
from kernels import backend
print(backend.use_backend("auto"))
try:
    backend.use_backend("neuron")
except RuntimeError as error:
    print(error)
""",
        path=tmp_path,
    )
    first, second = done.stdout.splitlines()
    assert first == "Execution(backend='reference', lnc=2)"
    assert second == (
        "kernel backend neuron is not available: import torch_neuronx fails (WRONG PACKAGE: this is a placeholder). "
        "Use reference or simulator instead"
    )
