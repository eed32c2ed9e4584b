"""The torch ops: registration, autograd, compilation, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

from kernels import backend, ops  # noqa: E402
from kernels.backend import Calls  # noqa: E402
from kernels.rope.reference import rope_cache  # noqa: E402


@pytest.fixture(params=["reference", "simulator"])
def where(request: pytest.FixtureRequest) -> Iterator[str]:
    with backend.isolated(request.param, lnc=1):
        yield request.param


def rope_inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    query, key = (torch.randn(2, 128, heads, 16, dtype=dtype, requires_grad=True) for heads in (4, 2))
    return query, key, rope_cache(130, 16)


def expert_inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    x = torch.randn(40, 24, dtype=dtype, requires_grad=True)
    w1, w3 = (torch.randn(4, 16, 24, dtype=dtype, requires_grad=True) for _ in range(2))
    w2 = torch.randn(4, 24, 16, dtype=dtype, requires_grad=True)
    return x, torch.tensor([10, 0, 25, 5]), w1, w2, w3


def detached(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.detach() for tensor in tensors)


OPS: dict[str, Callable[[], tuple[torch.Tensor, ...]]] = {
    "rope": rope_inputs,
    "rope_backward": lambda: detached(*rope_inputs()),
    "experts": expert_inputs,
    "experts_backward": lambda: detached(
        expert_inputs()[0], *expert_inputs(), torch.randn(40, 16), torch.randn(40, 16)
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_opcheck(name: str) -> None:
    with backend.isolated("reference", lnc=1):
        results = torch.library.opcheck(getattr(torch.ops.pilot, name).default, OPS[name]())
    assert set(results.values()) == {"SUCCESS"}
    assert len(results) == 4


@pytest.mark.parametrize("inputs", [rope_inputs, expert_inputs])
def test_compiled_without_a_graph_break_it_computes_and_counts_the_same(where: str, inputs: Callable) -> None:
    op, kernel = (ops.rope, "nki_rope") if inputs is rope_inputs else (ops.experts, "nki_moe")

    def loss(*tensors: torch.Tensor) -> torch.Tensor:
        result = op(tensors[0] * 2, *tensors[1:])
        first = result[0] if isinstance(result, tuple) else result
        return first.square().sum()

    tensors = inputs()
    gradients = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        ops.reset_counts()
        tensors[0].grad = None
        function(*tensors).backward()
        gradients.append(tensors[0].grad)
        assert ops.calls(kernel) == Calls(1, 1)
    assert torch.equal(*gradients)


def test_only_one_result_used_and_only_one_input_differentiated(where: str) -> None:
    query, key, cache = rope_inputs()
    ops.rope(query, key.detach(), cache)[0].sum().backward()
    assert query.grad is not None
    assert key.grad is None


def test_the_cache_receives_no_gradient(where: str) -> None:
    query, key, cache = rope_inputs()
    cache.requires_grad_()
    ops.rope(query, key, cache)[0].sum().backward()
    assert cache.grad is None


def test_inputs_and_gradients_with_gaps_in_memory(where: str) -> None:
    query, key, cache = rope_inputs()
    gapped = [torch.cat((tensor, tensor), dim=-1)[..., :16].detach().requires_grad_() for tensor in (query, key)]
    wide = torch.cat((cache, cache), dim=0)[::2].repeat_interleave(1, dim=0)
    results = [ops.rope(*pair, wide) for pair in ((query, key), gapped)]
    for result in results:
        result[0].transpose(1, 2).square().sum().backward()
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(query.grad, gapped[0].grad)
    assert all(tensor.is_contiguous() for tensor in results[1])


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_results_have_the_dtype_of_what_goes_in(where: str, name: str) -> None:
    dtype = getattr(torch, name)
    assert {tensor.dtype for tensor in ops.rope(*rope_inputs(dtype))} == {dtype}
    inputs = expert_inputs(dtype)
    out = ops.experts(*inputs)
    out.sum().backward()
    assert {out.dtype, inputs[2].grad.dtype} == {dtype}


def test_the_backend_that_ran_is_the_one_that_is_counted(where: str) -> None:
    ops.rope(*rope_inputs())
    ops.experts(*expert_inputs())[0].sum().backward()
    assert ops.report_lines() == [
        f"[pilot] kernel nki_moe backend={where} forward=1 backward=1",
        f"[pilot] kernel nki_rope backend={where} forward=1 backward=0",
    ]


def test_a_call_that_fails_is_not_counted() -> None:
    x, _, w1, w2, w3 = expert_inputs()
    with backend.isolated("reference", lnc=1):
        with pytest.raises(ValueError, match="tokens_per_expert adds up to 44, x has 40 rows"):
            ops.experts(x, torch.tensor([11, 11, 11, 11]), w1, w2, w3)
        assert ops.calls("nki_moe") == Calls(0, 0)


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq", [200, 128])
def test_a_sequence_length_that_the_device_would_refuse_is_refused_everywhere(seq: int) -> None:
    tensor = torch.randn(1, seq, 1, 8)
    for name in ("reference", "simulator"):
        with (
            backend.isolated(name, lnc=2),
            pytest.raises(ValueError, match=r"a multiple of 128 x LNC = 256 was expected \(LNC=2\); nearest: 256"),
        ):
            ops.rope(tensor, tensor, rope_cache(256, 8))


T = torch.zeros
WRONG_ROPE = {
    "three dimensions": ((T(1, 128, 8), T(1, 128, 1, 8), T(128, 16)), "[batch, seq, heads, head_dim] expected"),
    "key of another length": ((T(1, 128, 1, 8), T(1, 256, 1, 8), T(256, 16)), "only heads may differ"),
    "key of another dtype": ((T(1, 128, 1, 8), T(1, 128, 1, 8).bfloat16(), T(128, 16)), "the same float32"),
    "float64": ((T(1, 128, 1, 8).double(), T(1, 128, 1, 8).double(), T(128, 16)), "query is torch.float64"),
    "odd head": ((T(1, 128, 1, 7), T(1, 128, 1, 7), T(128, 14)), "head_dim 7 does not fit kernel nki_rope"),
    "short cache": ((T(1, 128, 1, 8), T(1, 128, 1, 8), T(127, 16)), "[at least 128, 16] expected"),
    "narrow cache": ((T(1, 128, 1, 8), T(1, 128, 1, 8), T(128, 8)), "[at least 128, 16] expected"),
    "cache of another batch": ((T(2, 128, 1, 8), T(2, 128, 1, 8), T(3, 128, 16)), "with or without a batch of 2"),
}
WRONG_EXPERTS = {
    "x of another width": ((T(8, 5), T(2).long(), T(2, 3, 4), T(2, 4, 3), T(2, 3, 4)), "do not go together"),
    "w2 not turned": ((T(8, 4), T(2).long(), T(2, 3, 4), T(2, 3, 4), T(2, 3, 4)), "w2 [experts, dim, ffn] expected"),
    "mixed dtypes": ((T(8, 4).bfloat16(), T(2).long(), T(2, 3, 4), T(2, 4, 3), T(2, 3, 4)), "for all expected"),
    "counts of another number": ((T(8, 4), T(3).long(), T(2, 3, 4), T(2, 4, 3), T(2, 3, 4)), "2 integers expected"),
    "fractional counts": ((T(8, 4), T(2), T(2, 3, 4), T(2, 4, 3), T(2, 3, 4)), "2 integers expected"),
    "flat weights": ((T(8, 4), T(2).long(), T(3, 4), T(4, 3), T(3, 4)), "[experts, ffn, dim] expected"),
}


@pytest.mark.parametrize("case", [*WRONG_ROPE, *WRONG_EXPERTS])
def test_arguments_that_do_not_go_together_are_refused(case: str) -> None:
    op, (arguments, message) = (
        (ops.rope, WRONG_ROPE[case]) if case in WRONG_ROPE else (ops.experts, WRONG_EXPERTS[case])
    )
    with backend.isolated("reference", lnc=1), pytest.raises(ValueError) as error:  # noqa: PT011
        op(*arguments)
    assert message in str(error.value)
    assert str(error.value).startswith(("nki_", "head_dim"))
