"""The way to a device, with stand-ins for torch_neuronx and for a device: which calls are made, not what Trainium does.

The stand-in's ``nki_op`` is torch's own ``custom_op``, and its kernels run in the simulator. That shows that backend
``neuron`` registers ops through ``nki_op`` and launches ``kernel[lnc]`` on tensors as they are; no more than that.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.kernels.processes import python

TORCH_NEURONX = """
import torch
registered = []
def nki_op(name, mutates_args):
    registered.append(name)
    return torch.library.custom_op(name, mutates_args=mutates_args)
"""
NKI = """
from kernels.sim import isa, language, runtime
import sys
sys.modules["nki.isa"], sys.modules["nki.language"] = isa, language
launched = []
class Kernel(runtime.Kernel):
    def __getitem__(self, grid):
        return Kernel(self.function, grid)
    def __call__(self, *tensors):
        launched.append((self.__name__, self.lnc))
        return runtime.simulate(self)(*tensors)
def jit(function):
    return Kernel(function)
"""
TRAINING_STEP = """
from kernels import backend
print(backend.use_backend("auto", lnc=2))
import nki, torch, torch_neuronx
from kernels import ops
from kernels.rope.reference import rope_cache, rotate
query, key = (torch.randn(1, 256, heads, 16, requires_grad=True) for heads in (2, 1))
out = ops.rope(query, key, rope_cache(256, 16))
out[0].sum().backward()
print(torch.equal(out[0], rotate(query, rope_cache(256, 16))))
print(sorted(torch_neuronx.registered))
print(nki.launched)
print(*ops.report_lines(), sep="\\n")
"""


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    (tmp_path / "torch_neuronx.py").write_text(TORCH_NEURONX)
    (tmp_path / "nki.py").write_text(NKI)
    return tmp_path


def test_neuron_registers_through_nki_op_and_launches_on_both_cores(stand_ins: Path) -> None:
    done = python(TRAINING_STEP, path=stand_ins)
    assert done.stdout.splitlines() == [
        "Execution(backend='neuron', lnc=2)",
        "True",
        "['pilot::experts', 'pilot::experts_backward', 'pilot::rope', 'pilot::rope_backward']",
        "[('rope_forward', 2), ('rope_backward', 2)]",
        "[pilot] kernel nki_rope backend=neuron forward=1 backward=1",
    ], done.stderr
