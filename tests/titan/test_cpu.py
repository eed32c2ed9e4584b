"""The CPU shim: real memory figures, and hands off where torch finds an accelerator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.titan

PROBE = """
import json, sys
import torch, torch._utils, torch.distributed
found = json.loads(sys.argv[1])
if found:
    torch._utils._get_available_device_type = lambda: found
before = (torch._utils._get_available_device_type, torch._utils._get_device_module)
had_timeout = hasattr(torch.distributed, "set_timeout")
from harness.titan import cpu
installed = cpu.install()
print(json.dumps({
    "installed": installed,
    "torchtitan": [name for name in sys.modules if name.startswith("torchtitan")] != [],
    "restored": before == (torch._utils._get_available_device_type, torch._utils._get_device_module),
    "timeout_added": hasattr(torch.distributed, "set_timeout") != had_timeout,
    "triton": "triton" in sys.modules,
}))
"""


def probe(found: str | None) -> dict[str, bool]:
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROBE, json.dumps(found)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("found", ["cuda", "neuron"])
def test_nothing_is_touched_where_an_accelerator_is_found(found: str) -> None:
    assert probe(found) == {
        "installed": False,
        "torchtitan": False,
        "restored": True,
        "timeout_added": False,
        "triton": False,
    }


def test_without_one_torchtitan_is_prepared_and_torch_s_answers_are_put_back() -> None:
    import torch

    if torch.accelerator.is_available():
        pytest.skip(f"this machine has an accelerator: {torch.accelerator.current_accelerator()}")
    before_public_set_timeout = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 14)
    assert probe(None) == {
        "installed": True,
        "torchtitan": True,
        "restored": True,
        "timeout_added": before_public_set_timeout,
        "triton": False,
    }


def test_memory_is_the_process_s_own_peak() -> None:
    from harness.titan.cpu import cpu_device_module

    device = cpu_device_module()
    device.reset_peak_memory_stats()
    before = device.memory_stats()["reserved_bytes.all.peak"]
    block = bytearray(os.urandom(1) * (64 << 20))
    after = device.memory_stats()["reserved_bytes.all.peak"]
    del block
    assert 10 << 20 < before < 64 << 30
    if Path("/proc/self/clear_refs").exists():
        assert after - before > 48 << 20
    assert device.get_device_properties().total_memory > before
    assert device.current_device() == 0  # torch.cpu's own answer, "cpu", breaks barriers


def test_a_kernel_that_needs_triton_refuses_when_called() -> None:
    from harness.titan.cpu import _refusing_module

    module = _refusing_module("some.kernels", "triton")
    with pytest.raises(RuntimeError, match=r"some\.kernels\.permute needs triton, which is not installed"):
        module.permute(1)
    assert not hasattr(module, "__path__")
