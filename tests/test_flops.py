"""FLOPs per token, peaks and MFU: hand calculations, one number for equal work, and refusals."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from harness.flops import Reported, explain_ratio, flops_per_token, mfu, transformers_backend_flops
from harness.paths import load_path
from harness.peaks import TABLE, TRAINIUM2_VALUES, explain_denominator, peak_of_rank

HF, NATIVE, MOE = (load_path(name).full_shape() for name in ("hf_4b", "native_4b", "moe_nki"))


def test_qwen3_4b_by_hand() -> None:
    attention = 2560 * 32 * 128 + 2 * 2560 * 8 * 128 + 32 * 128 * 2560 + 2 * 128  # q, k and v, o, norms of q and k
    layer = attention + 3 * 2560 * 9728 + 2 * 2560
    parameters = 36 * layer + 2560 + 151936 * 2560  # the head; the look-up of the tied embedding multiplies nothing
    assert parameters == 4_022_468_096
    found = flops_per_token(NATIVE, 4096)
    assert found.matmul == 6 * parameters == 24_134_808_576
    assert found.attention == 3 * 2 * 2 * 36 * 32 * 128 * 4096 == 7_247_757_312  # fwd + 2 bwd, 2 products, 2 FLOPs
    assert found.total == 31_382_565_888


def test_the_mixture_of_experts_by_hand() -> None:
    attention = 2048 * 32 * 128 + 2 * 2048 * 4 * 128 + 32 * 128 * 2048 + 2 * 128
    active = 4 * 3 * 2048 * 768 + 64 * 2048  # four experts and the router
    parameters = 4 * (attention + active + 2 * 2048) + 2048 + 151936 * 2048  # the untied head; no embedding
    found = flops_per_token(MOE, 4096)
    assert found.matmul == 6 * parameters == 2_776_221_696
    assert found.attention == 12 * 4 * 32 * 128 * 4096 == 805_306_368


def test_only_active_experts_count() -> None:
    more = dataclasses.replace(MOE, num_experts=128)
    router = 6 * MOE.num_layers * 64 * MOE.hidden
    assert flops_per_token(more, 4096).matmul - flops_per_token(MOE, 4096).matmul == router
    twice = dataclasses.replace(MOE, top_k=8)
    experts = 6 * MOE.num_layers * 4 * 3 * MOE.hidden * MOE.moe_ffn
    assert flops_per_token(twice, 4096).matmul - flops_per_token(MOE, 4096).matmul == experts


@pytest.mark.parametrize("seq_len", [2048, 4096, 8192])
def test_equal_work_has_equal_mfu_on_both_4b_paths(seq_len: int) -> None:
    peak = peak_of_rank("trn2", lnc=2).flops
    found = [mfu(2000.0, flops_per_token(shape, seq_len).total, peak).percent for shape in (HF, NATIVE)]
    assert found[0] == found[1]
    assert found[0] == pytest.approx(100 * 2000 * flops_per_token(NATIVE, seq_len).total / 166.75e12)


@pytest.mark.parametrize(("seq_len", "ratio"), [(2048, 0.851), (4096, 0.810), (8192, 0.752)])
def test_what_the_transformers_backend_prints_for_the_same_work(seq_len: int, ratio: float) -> None:
    printed = transformers_backend_flops(HF, seq_len).total
    assert printed / flops_per_token(NATIVE, seq_len).total == pytest.approx(ratio, abs=5e-4)


@pytest.mark.parametrize(("seq_len", "ratio"), [(2048, 0.935), (4096, 0.885), (8192, 0.812)])
def test_half_of_the_attention_term_alone(seq_len: int, ratio: float) -> None:
    printed = transformers_backend_flops(HF, seq_len, embedding_counted=True).total
    assert printed / flops_per_token(NATIVE, seq_len).total == pytest.approx(ratio, abs=5e-4)


def test_the_published_factor_of_five_for_the_full_mixture_of_experts() -> None:
    full = dataclasses.replace(MOE, num_layers=48, num_experts=128, top_k=8)
    printed = transformers_backend_flops(full, 8192, embedding_counted=True).total
    assert printed == 192_856_412_160  # pytorch/torchtitan pull request 4300
    assert flops_per_token(full, 8192).total == 37_578_559_488
    assert round(192_856_412_160 / 37_578_559_488, 2) == 5.13


@pytest.mark.titan
@pytest.mark.parametrize("name", ["native_4b", "moe_nki", "hf_4b"])
def test_torchtitan_counts_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Native paths: the library's own number is ours. Transformers backend: it is what we explain the ratio with."""
    from harness.titan.spec import SPEC_ENV
    from tests.titan.inprocess import prepare_process, write_spec
    from tests.titan.test_model import full_scale

    prepare_process()
    monkeypatch.setenv("PILOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(SPEC_ENV, str(write_spec(full_scale(name), tmp_path)))
    import torch

    from harness.titan import config_registry

    config = getattr(config_registry, name)()
    model_config = config.model_spec.model
    model_config.update_from_config(config=config)
    with torch.device("meta"):
        model = model_config.build()
    _, counted = model_config.get_nparams_and_flops(model, 4096)
    shape = load_path(name).full_shape()
    if name == "hf_4b":
        assert counted == transformers_backend_flops(shape, 4096).total
    else:
        assert counted == flops_per_token(shape, 4096).total


# -- peaks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "name", "flops"),
    [
        ("NVIDIA H100 80GB HBM3", "h100", 989e12),
        ("NVIDIA H100 PCIe", "h100-pcie", 756e12),
        ("NVIDIA H100 NVL", "h100-nvl", 835e12),
        ("NVIDIA H200", "h200", 989e12),
        ("NVIDIA H20", "h20", 148e12),
        ("NVIDIA A100-SXM4-80GB", "a100", 312e12),
        ("NVIDIA GB200", "gb200", 2.5e15),
        ("NVIDIA B200", "b200", 2.25e15),
        ("AMD Instinct MI300X", "mi300x", 1307.4e12),
        ("TPU v5p", "tpu-v5p", 459e12),
        ("h100", "h100", 989e12),
    ],
)
def test_devices_by_the_names_that_machines_give_them(device: str, name: str, flops: float) -> None:
    found = peak_of_rank(device, dtype="bfloat16")
    assert (found.name, found.flops) == (name, flops)
    assert found.source


@pytest.mark.parametrize(
    ("device", "lnc", "tflops"),
    [
        ("trn2", 1, 83.375),
        ("trn2", 2, 166.75),
        ("trn3", 2, 167.75),
        ("trn2u", 2, 166.75),
        ("trn1", None, 95),
        ("trn1n", 1, 95),
    ],
)
def test_a_logical_core_of_trainium(device: str, lnc: int | None, tflops: float) -> None:
    assert peak_of_rank(device, lnc=lnc).flops == pytest.approx(tflops * 1e12)


def test_a_node_of_trainium2_adds_up_to_its_published_peak() -> None:
    assert 64 * peak_of_rank("trn2", lnc=2).flops == pytest.approx(10.7e15, rel=0.005)
    assert 128 * peak_of_rank("trn2", lnc=1).flops == 64 * peak_of_rank("trn2", lnc=2).flops


@pytest.mark.parametrize("device", ["neuron", "cpu", "", "NVIDIA RTX 5090", "Ascend910B2", "NVIDIA T4"])
def test_an_unknown_device_has_no_peak_and_says_what_to_type(device: str) -> None:
    found = peak_of_rank(device)
    assert found.flops is None
    assert "platform.peak_flops_per_rank" in found.reason


def test_lnc_is_never_assumed() -> None:
    assert peak_of_rank("trn2").flops is None
    assert "platform.lnc" in peak_of_rank("trn2").reason
    with pytest.raises(ValueError, match=r"platform\.lnc is 4; trn2 has 1 or 2"):
        peak_of_rank("trn2", lnc=4)
    with pytest.raises(ValueError, match="trn1 has 1"):
        peak_of_rank("trn1", lnc=2)


def test_the_table_is_for_sixteen_bit_types_only() -> None:
    assert peak_of_rank("h100", dtype="torch.bfloat16").flops == 989e12
    assert "not for float32" in peak_of_rank("h100", dtype="float32").reason


def test_an_override_wins_and_is_named() -> None:
    found = peak_of_rank("trn2", override=158e12)
    assert (found.flops, found.source) == (158e12, "given: platform.peak_flops_per_rank")
    with pytest.raises(ValueError, match="above 0"):
        peak_of_rank("trn2", override=0.0)


def test_every_entry_has_a_source_and_is_found_by_its_name() -> None:
    for entry in TABLE:
        assert entry.source
        assert peak_of_rank(entry.name, lnc=1).name == entry.name


def test_denominators_in_use_are_explained() -> None:
    assert len(TRAINIUM2_VALUES) >= 5
    assert "79 BF16 TFLOPS" in explain_denominator(158e12)
    assert "systolic" in explain_denominator(1.573e14)  # as printed, with four digits
    assert explain_denominator(1.23e14) == ""


# -- MFU ----------------------------------------------------------------------------------------------------------


def test_more_than_100_percent_is_refused_with_its_inputs() -> None:
    found = mfu(6000.0, 31_382_565_888, 166.75e12)
    assert found.percent is None
    for said in ("112.9 %", "6000", "3.13826e+10", "1.6675e+14"):
        assert said in found.reason
    assert mfu(5313.0, 31_382_565_888, 166.75e12).percent == pytest.approx(99.99, abs=0.01)


@pytest.mark.parametrize("inputs", [(None, 1e10, 1e14), (1.0, None, 1e14), (1.0, 1e10, None)])
def test_without_an_input_there_is_none(inputs: tuple[float | None, float | None, float | None]) -> None:
    found = mfu(*inputs, missing="no peak is known")
    assert (found.percent, found.reason) == (None, "no peak is known")


def explained(reported: Reported, ours: float = 30.0) -> str:
    flops, peak = flops_per_token(HF, 4096).total, 166.75e12
    return explain_ratio(ours, reported, flops=flops, peak=peak, shape=HF, seq_len=4096)


def test_equal_numbers_need_no_explanation() -> None:
    assert explained(Reported(mfu=30.1)) == ""


def test_the_ratio_is_explained_by_convention_and_peak() -> None:
    printed = transformers_backend_flops(HF, 4096).total
    said = explained(
        Reported(mfu=30.0 * printed / flops_per_token(HF, 4096).total * 166.75 / 158, flops=printed, peak=158e12)
    )
    assert "0.855 x ours" in said
    assert "half of the attention term" in said
    assert "79 BF16 TFLOPS" in said


def test_an_a100_fallback_is_named() -> None:
    assert "A100" in explained(Reported(mfu=30.0 * 166.75 / 312, peak=312e12))


def test_a_ratio_without_a_known_cause_is_called_so() -> None:
    assert "does not tell" in explained(Reported(mfu=12.0))


def test_a_sequence_length_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="sequence length is 0"):
        flops_per_token(HF, 0)
