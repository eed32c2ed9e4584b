"""The RoPE kernels in the simulator, through their op: exact against float32, on every shape the models have."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from kernels import backend, ops, sim  # noqa: E402
from kernels.check import gate  # noqa: E402
from kernels.check.shapes import RopeShape  # noqa: E402
from kernels.rope.reference import rope_cache, rotate  # noqa: E402

SHAPES = [
    RopeShape(batch=1, heads=1, kv_heads=1, seq=256, head_dim=64),
    RopeShape(batch=4, heads=8, kv_heads=1, seq=256, head_dim=128),
    RopeShape(batch=1, heads=32, kv_heads=8, seq=512, head_dim=64),
    RopeShape(batch=4, heads=1, kv_heads=8, seq=512, head_dim=128),
    RopeShape(batch=1, heads=8, kv_heads=1, seq=4096, head_dim=128),
    RopeShape(batch=2, heads=4, kv_heads=2, seq=256, head_dim=16),  # the rehearsals'
    RopeShape(batch=1, heads=1, kv_heads=1, seq=2304, head_dim=64),  # 9 tiles per core: a last step that is smaller
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_forward_and_gradients_are_exact(shape: RopeShape, lnc: int, dtype: str) -> None:
    checks = gate.run("nki_rope", shapes=[shape], dtypes=[dtype], lncs=[lnc], where="simulator")
    assert {check.what for check in checks} == {
        "forward query", "forward key", "grad query", "grad key", "calls missing"
    }  # fmt: skip
    assert {check.what: check.max_abs for check in checks} == dict.fromkeys([check.what for check in checks], 0.0)


def test_batches_may_have_angles_of_their_own() -> None:
    query, key = torch.randn(3, 256, 2, 32), torch.randn(3, 256, 1, 32)
    cache = torch.stack([rope_cache(256, 32, theta) for theta in (1e3, 1e4, 1e6)])
    with backend.isolated("simulator", lnc=2):
        rotated = ops.rope(query, key, cache)
    assert torch.equal(rotated[0], rotate(query, cache))
    assert torch.equal(rotated[1], rotate(key, cache))
    assert not torch.equal(rotated[0], rotate(query, cache[0]))


def test_the_kernel_agrees_with_rounding_everything_only_roughly() -> None:
    """The trap: Transformers computes in bfloat16 throughout, and is off by three per cent of a unit."""
    query = torch.randn(1, 256, 4, 128).bfloat16()
    cache = rope_cache(256, 128)
    with backend.isolated("simulator", lnc=2):
        exact = ops.rope(query, query, cache)[0]
    cos, sin = (part.bfloat16().unsqueeze(1) for part in cache.chunk(2, dim=1))
    swapped = torch.cat((-query[..., 64:], query[..., :64]), dim=-1)
    difference = (exact.float() - (query * cos + swapped * sin).float()).abs().max()
    assert 1e-2 < difference < 1e-1


def test_rotating_back_undoes_rotating() -> None:
    query, key = torch.randn(1, 256, 4, 64), torch.randn(1, 256, 2, 64)
    cache = rope_cache(256, 64)
    with backend.isolated("simulator", lnc=1):
        there = torch.ops.pilot.rope(query, key, cache)
        back = torch.ops.pilot.rope_backward(*there, cache)
    torch.testing.assert_close(back[0], query, rtol=0, atol=2e-6)
    torch.testing.assert_close(back[1], key, rtol=0, atol=2e-6)


def test_every_value_moves_once() -> None:
    """DMA is what RoPE costs: the cache once per step of 8 tiles, each head once in and once out."""
    query, key = torch.randn(2, 2048, 3, 64), torch.randn(2, 2048, 1, 64)
    before = sim.instructions["dma_copy"]
    with backend.isolated("simulator", lnc=2):
        ops.rope(query, key, rope_cache(2048, 64))
    cores, steps, heads = 2, 1, 4
    assert sim.instructions["dma_copy"] - before == cores * steps * (2 + 2 * heads * 2)
