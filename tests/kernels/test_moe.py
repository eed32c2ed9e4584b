"""The expert kernels in the simulator: the block table, and forward and gradients against float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from kernels import backend, ops  # noqa: E402
from kernels.check import gate  # noqa: E402
from kernels.check.gate import difference  # noqa: E402
from kernels.check.shapes import ExpertShape  # noqa: E402
from kernels.moe.blocks import block_table, num_blocks  # noqa: E402
from kernels.moe.reference import experts_oracle  # noqa: E402

LIMIT = {torch.float32: 1e-6, torch.bfloat16: 1e-2}


@pytest.mark.parametrize("counts", [[130, 0, 128, 1], [0, 0, 0, 0], [300], [0, 257], [1] * 64, [127, 129, 0, 256, 44]])
@pytest.mark.parametrize("spare", [0, 7])
def test_blocks_cover_every_row_once(counts: list[int], spare: int) -> None:
    rows = sum(counts) + spare
    table = block_table(torch.tensor(counts), rows)
    assert table.rows.shape == (num_blocks(rows, len(counts)), 128)
    owner = {}
    for numbers, expert in zip(table.rows.tolist(), table.expert.flatten().tolist(), strict=True):
        for row in numbers:
            if row < rows:
                assert row not in owner
                owner[row] = expert
    ends = torch.tensor(counts).cumsum(0).tolist()
    expected = {row: expert for expert, end in enumerate(ends) for row in range(end - counts[expert], end)}
    assert owner == expected
    finished = [expert for expert in table.finished.flatten().tolist() if expert < len(counts)]
    assert finished == list(range(len(counts)))  # every expert has a last block, also one without rows
    starts = [
        expert for expert, again in zip(table.expert.flatten(), table.continues.flatten(), strict=True) if not again
    ]
    assert [int(expert) for expert in starts] == list(range(len(counts)))


def test_the_table_never_asks_for_a_value() -> None:
    """Shapes depend on sizes alone: the table can be made of tensors that have no values."""
    with torch.device("meta"):
        table = block_table(torch.zeros(64, dtype=torch.int64), 2048)
    assert table.rows.shape == (2048 // 128 + 64, 128)
    assert {table.rows.device.type, table.expert.device.type, table.continues.device.type} == {"meta"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(
    "shape",
    [
        ExpertShape(tokens=96, top_k=2, dim=192, ffn=96, experts=8),  # tails in every dimension
        ExpertShape(tokens=64, top_k=1, dim=640, ffn=640, experts=2),  # more than one chunk of PSUM columns
        ExpertShape(tokens=128, top_k=4, dim=64, ffn=32, experts=64),  # the rehearsal's experts
    ],
    ids=str,
)
def test_forward_and_gradients_are_within_tolerance(shape: ExpertShape, lnc: int, dtype: str) -> None:
    checks = gate.run("nki_moe", shapes=[shape], dtypes=[dtype], lncs=[lnc], where="simulator")
    assert {check.what for check in checks} == {
        "forward", "grad x", "grad w1", "grad w2", "grad w3", "calls missing"
    }  # fmt: skip
    limit = LIMIT[getattr(torch, dtype)]
    assert [(check.what, check.max_rel) for check in checks if not check.passed or check.max_rel > limit] == []


@pytest.mark.parametrize("where", ["simulator", "reference"])
@pytest.mark.parametrize(
    "counts",
    [[0, 0, 200, 0], [200, 0, 0, 0], [0, 0, 0, 200], [1, 1, 1, 197], [128, 64, 0, 8], [0, 0, 0, 0], [60, 0, 60, 60]],
)
def test_distributions_down_to_none(counts: list[int], where: str) -> None:
    """Also with rows that belong to no expert: they give zeros and receive zero gradients."""
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(200, 48, generator=generator) for _ in range(2))
    w1, w3 = (torch.randn(4, 40, 48, generator=generator) / 7 for _ in range(2))
    w2 = torch.randn(4, 48, 40, generator=generator) / 7
    tokens = torch.tensor(counts)
    mine = [tensor.clone().requires_grad_() for tensor in (x, w1, w2, w3)]
    with backend.isolated(where, lnc=2):
        out = ops.experts(mine[0], tokens, *mine[1:])
        out.backward(grad)
    theirs = [tensor.double().requires_grad_() for tensor in (x, w1, w2, w3)]
    reference = experts_oracle(theirs[0], tokens, *theirs[1:])
    reference.backward(grad.double())
    assert difference(out, reference)[1] <= 1e-6
    for a, b in zip(mine, theirs, strict=True):
        assert difference(a.grad, b.grad)[1] <= 1e-6
    assert not out[sum(counts) :].any()
    assert not mine[0].grad[sum(counts) :].any()
