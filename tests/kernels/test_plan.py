"""What a choice of kernels means: swaps, layers, calls, arguments of the gate. No torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.backend import Calls
from kernels.check.cli import parser
from kernels.limits import check_head_dim, check_sequence_length
from kernels.plan import LayerShape, expected_calls, gate_arguments, name_clash, plan_swaps, select_layers

LAYER = LayerShape(
    batch=2, seq=256, heads=4, kv_heads=2, head_dim=16, dtype="float32", dim=64, ffn=32, experts=64, top_k=4
)


def test_rope_in_a_native_model() -> None:
    plan = plan_swaps("nki_rope", num_layers=36, backend="reference", lnc=2)
    assert plan.override_imports == ("kernels.swaps.nki_rope",)
    assert plan.expected_swaps == {"nki_rope": 36}
    assert plan.expected_calls(steps=10, micro_batches=2) == {"nki_rope": Calls(720, 720)}
    assert plan.environment == {
        "PILOT_KERNELS": "nki_rope",
        "PILOT_KERNEL_LAYERS": ",".join(map(str, range(36))),
        "PILOT_KERNEL_BACKEND": "reference",
        "PILOT_KERNEL_LNC": "2",
    }


def test_both_kernels_in_some_layers_of_a_mixture_of_experts() -> None:
    plan = plan_swaps("nki_all", num_layers=4, layers="0,2-3", has_experts=True)
    assert plan.override_imports == ("kernels.swaps.nki_rope", "kernels.swaps.nki_moe")
    assert plan.expected_swaps == {"nki_rope": 3, "nki_moe": 3}
    assert plan.expected_calls(steps=10, recompute="selective") == dict.fromkeys(("nki_rope", "nki_moe"), Calls(60, 30))


def test_rope_in_a_transformers_model_is_no_override() -> None:
    plan = plan_swaps("nki_rope", num_layers=36, transformers=True)
    assert plan.override_imports == ()
    assert plan.expected_swaps == {"nki_rope": 36}
    assert "PILOT_KERNEL_LNC" not in plan.environment


def test_the_baseline_needs_nothing() -> None:
    plan = plan_swaps("baseline", num_layers=36, layers="no such layer")
    assert (plan.override_imports, plan.environment, plan.expected_swaps, plan.expected_calls(steps=10)) == (
        (),
        {},
        {},
        {},
    )
    assert gate_arguments(plan, LAYER, lnc=2) == []


@pytest.mark.parametrize(
    ("choice", "facts", "message"),
    [
        ("nki_attention", {}, "kernel=nki_attention: one of baseline, nki_rope, nki_moe, nki_all was expected"),
        (
            "nki_moe",
            {},
            "nki_moe has no place in this model, which has no experts; use kernel=nki_rope or path=moe_nki",
        ),
        ("nki_all", {"transformers": True, "has_experts": True}, "nki_moe has no place in the Transformers backend"),
        ("nki_rope", {"backend": "gpu"}, "kernel.backend=gpu: one of auto, reference, simulator, neuron was expected"),
        ("nki_rope", {"layers": "36"}, "kernel.layers='36': '36' selects none of the layers 0 to 35"),
    ],
)
def test_what_cannot_be_is_refused(choice: str, facts: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        plan_swaps(choice, num_layers=36, **facts)  # type: ignore[arg-type]
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", tuple(range(12))),
        ("0", (0,)),
        ("1", (1,)),
        ("1[0-9]", (10, 11)),
        ("?", tuple(range(10))),
        ("4-6", (4, 5, 6)),
        ("11, 0-1,*0", (0, 1, 10, 11)),
    ],
)
def test_patterns_of_layers(pattern: str, expected: tuple[int, ...]) -> None:
    assert select_layers(pattern, 12) == expected


@pytest.mark.parametrize("pattern", ["", "12", "0,,1", "layers.0", "7-3"])
def test_a_pattern_that_selects_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="selects none of the layers 0 to 11"):
        select_layers(pattern, 12)


def test_an_unknown_recomputation_is_refused() -> None:
    with pytest.raises(ValueError, match="recompute=some: one of none, selective, full was expected"):
        expected_calls(1, 1, recompute="some")


def test_the_gate_is_given_the_runs_own_shapes() -> None:
    plan = plan_swaps("nki_all", num_layers=4, has_experts=True)
    rope, experts = gate_arguments(plan, LAYER, lnc=2)
    assert rope == [
        "check", "nki_rope", "--shape", "batch=2,heads=4,kv_heads=2,seq=256,head_dim=16",
        "--dtype", "float32", "--lnc", "2", "--json",
    ]  # fmt: skip
    assert experts == [
        "check", "nki_moe", "--shape", "tokens=512,top_k=4,dim=64,ffn=32,experts=64",
        "--dtype", "bfloat16", "--lnc", "2", "--json",
    ]  # fmt: skip
    assert [parser().parse_args(arguments).kernels for arguments in (rope, experts)] == [["nki_rope"], ["nki_moe"]]


def test_a_package_of_the_same_name_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_clash() is None
    distribution = tmp_path / "kernels-0.16.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.16.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "kernels 0.16.0 is installed" in (name_clash() or "")


@pytest.mark.parametrize(("seq_len", "lnc"), [(128, 1), (256, 2), (4096, 2), (384, 1)])
def test_sequence_lengths_that_fit(seq_len: int, lnc: int) -> None:
    check_sequence_length(seq_len, lnc)


@pytest.mark.parametrize(
    ("seq_len", "lnc", "message"),
    [
        (200, 2, "sequence length 200 does not fit kernel nki_rope: a multiple of 128 x LNC = 256 was expected "
                 "(LNC=2); nearest: 256"),
        (384, 2, "nearest: 256 or 512"),
        (4000, 1, "nearest: 3968 or 4096"),
        (0, 1, "nearest: 128"),
        (-256, 2, "nearest: 256"),
        (256, 4, "LNC=4: a logical NeuronCore has 1 or 2 physical cores"),
    ],
)  # fmt: skip
def test_sequence_lengths_that_do_not(seq_len: int, lnc: int, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        check_sequence_length(seq_len, lnc)
    assert str(error.value).endswith(message)


@pytest.mark.parametrize("head_dim", [0, -2, 7])
def test_head_dims_without_halves_are_refused(head_dim: int) -> None:
    with pytest.raises(ValueError, match="an even number was expected"):
        check_head_dim(head_dim)
