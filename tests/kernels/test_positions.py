"""Positions that a gather-free kernel would get wrong are refused, at little cost."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from kernels import positions as module  # noqa: E402
from kernels.positions import require_sequential  # noqa: E402

SEQUENTIAL = [None, torch.arange(8), torch.arange(8).expand(3, -1), torch.arange(8, dtype=torch.int32).unsqueeze(0)]
OTHER = {
    "restart at a document": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]]),
    "start late": torch.arange(4, 12).unsqueeze(0),
    "one row of two": torch.stack([torch.arange(8), torch.arange(8).flip(0)]),
}


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the device was asked."""
    asked: list[int] = []
    evaluate = module._is_sequential
    monkeypatch.setattr(module, "_is_sequential", lambda positions: asked.append(1) or evaluate(positions))
    return asked


@pytest.mark.parametrize("positions", SEQUENTIAL)
def test_sequential_positions_pass(positions: torch.Tensor | None) -> None:
    require_sequential(positions)


@pytest.mark.parametrize("case", OTHER)
def test_others_are_refused(case: str) -> None:
    for _ in range(2):  # a refusal is not remembered as a pass
        with pytest.raises(ValueError, match=r"positions must be 0, 1, 2, \.\.\. in every row.*kernel=baseline"):
            require_sequential(OTHER[case])


def test_the_device_is_asked_once_for_all_layers(evaluations: list[int]) -> None:
    positions = torch.arange(8).expand(2, -1).contiguous()
    for _ in range(36):
        require_sequential(positions)
    assert len(evaluations) == 1
    require_sequential(torch.arange(8))
    assert len(evaluations) == 2


def test_a_tensor_that_changed_is_asked_about_again() -> None:
    positions = torch.arange(8)
    require_sequential(positions)
    positions[4:] -= 4
    with pytest.raises(ValueError, match="nki_rope has no gather"):
        require_sequential(positions)


def test_a_new_tensor_in_the_memory_of_an_old_one_is_asked_about() -> None:
    storage = torch.arange(8)
    require_sequential(storage.view(1, 8))
    with pytest.raises(ValueError, match="nki_rope has no gather"):
        require_sequential(OTHER["start late"])


def test_in_inference_mode_nothing_is_remembered() -> None:
    with torch.inference_mode():
        positions = torch.arange(8)
        require_sequential(positions)
        positions[4:] -= 4
        with pytest.raises(ValueError, match="nki_rope has no gather"):
            require_sequential(positions)


@pytest.mark.parametrize("positions", [torch.arange(8).expand(2, -1), OTHER["one row of two"]])
def test_a_compiled_graph_asserts_on_the_device(positions: torch.Tensor) -> None:
    def doubled(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        require_sequential(positions)
        return x * 2

    torch._dynamo.reset()
    compiled = torch.compile(doubled, fullgraph=True, backend="aot_eager")
    if positions is OTHER["one row of two"]:
        with pytest.raises(RuntimeError, match="nki_rope has no gather"):
            compiled(torch.ones(3), positions)
    else:
        assert compiled(torch.ones(3), positions).tolist() == [2, 2, 2]
