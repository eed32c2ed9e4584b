"""config.json against the model, in the words of several Transformers versions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.model_config import adopt, differences, read_config, shape_of, stored_dtype
from harness.paths import load_path
from harness.weights import weight_problems
from tests.weights.checkpoints import FOUR_B, TINY, TINY_MOE, config_of, write_config, write_sparse


@pytest.mark.parametrize("shape", [TINY, TINY_MOE, FOUR_B])
def test_a_faithful_config_has_no_difference_and_gives_back_its_shape(shape) -> None:
    assert differences(config_of(shape), shape) == []
    assert shape_of(config_of(shape)) == shape


CHANGES = {
    "num_layers": ("num_hidden_layers", 3),
    "hidden": ("hidden_size", 16),
    "num_heads": ("num_attention_heads", 4),
    "num_kv_heads": ("num_key_value_heads", 2),
    "head_dim": ("head_dim", 8),
    "vocab": ("vocab_size", 33),
    "norm_eps": ("rms_norm_eps", 1e-5),
    "moe_ffn": ("moe_intermediate_size", 16),
    "num_experts": ("num_local_experts", 8),
    "top_k": ("num_experts_per_tok", 1),
    "tied": ("tie_word_embeddings", True),
}


@pytest.mark.parametrize("field", CHANGES)
def test_each_field_is_compared_and_can_be_adopted(field: str) -> None:
    key, value = CHANGES[field]
    (wrong,) = differences(config_of(TINY_MOE, **{key: value}), TINY_MOE)
    assert (wrong.field, wrong.file, wrong.model) == (field, value, getattr(TINY_MOE, field))
    assert str(value) in str(wrong)
    assert str(wrong.model) in str(wrong)
    adopted, taken = adopt(TINY_MOE, [wrong])
    assert adopted == replace(TINY_MOE, **{field: value})
    assert taken == [wrong]


def test_dense_width() -> None:
    (wrong,) = differences(config_of(TINY, intermediate_size=24), TINY)
    assert str(wrong) == "intermediate_size is 24 in config.json, 16 in the model"


@pytest.mark.parametrize(
    "where",
    [
        {"rope_parameters": {"rope_theta": 5e6, "rope_type": "default"}},  # Transformers 5
        {"rope_parameters": None, "rope_theta": 5000000},  # 4, an integer in the published file
        {"rope_parameters": {"rope_theta": 5e6}, "rope_theta": 1e6},  # both: 5 wins
    ],
)
def test_rope_theta_of_another_release(where: dict) -> None:
    (wrong,) = differences(config_of(TINY, **where), TINY)
    assert (wrong.key, wrong.file, wrong.model) == ("rope_theta", 5e6, 1e6)
    adopted, _ = adopt(TINY, [wrong])
    assert adopted == replace(TINY, rope_theta=5e6)
    assert isinstance(adopted.rope_theta, float)


def test_instruct_weights_in_the_native_path(tmp_path: Path) -> None:
    """The trap of the two 4B releases: same keys, same shapes, another RoPE base."""
    instruct, native = load_path("hf_4b").full_shape(), load_path("native_4b").full_shape()
    write_sparse(tmp_path, instruct)
    assert weight_problems(tmp_path, instruct) == []
    assert weight_problems(tmp_path, native) == ["rope_theta is 5000000.0 in config.json, 1000000.0 in the model"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"attention_bias": True}, "attention_bias is True in config.json, False in the model"),
        ({"hidden_act": "gelu"}, "hidden_act is gelu"),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn"}}, "rope_type is yarn"),
        ({"norm_topk_prob": None}, "norm_topk_prob is False in config.json, True in the model"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
    ],
)
def test_what_the_paths_build_in_one_way_only_is_never_adopted(change: dict, said: str) -> None:
    (wrong,) = differences(config_of(TINY_MOE, **change), TINY_MOE)
    assert said in str(wrong)
    assert adopt(TINY_MOE, [wrong]) == (TINY_MOE, [])


def test_a_missing_or_impossible_value_is_a_difference_and_not_adopted() -> None:
    for value in (None, "8", -8, 0, True, 2**40, 8.0 + 1e-9):
        (wrong,) = differences(config_of(TINY, vocab_size=value), TINY)
        assert wrong.key == "vocab_size"
        assert adopt(TINY, [wrong]) == (TINY, [])


def test_another_kind_of_model() -> None:
    (wrong,) = differences(config_of(TINY_MOE), TINY)
    assert str(wrong) == "model_type is qwen3_moe in config.json, qwen3 in the model"
    with pytest.raises(ValueError, match="model_type is llama in config.json, qwen3 or qwen3_moe was expected"):
        shape_of(config_of(TINY, model_type="llama"))


def test_dtype_is_noted_and_not_compared() -> None:
    assert stored_dtype(config_of(TINY)) == "bfloat16"
    assert stored_dtype(config_of(TINY, dtype=None, torch_dtype="float16")) == "float16"
    assert differences(config_of(TINY, dtype="float32"), TINY) == []


def test_no_config(tmp_path: Path) -> None:
    (write_sparse(tmp_path, TINY) / "config.json").unlink()
    (problem,) = weight_problems(tmp_path, TINY)
    assert "config.json cannot be read: No such file or directory; it belongs beside weights" in problem
    write_sparse(tmp_path / "export", TINY)  # as if a run directory had been named
    (problem,) = weight_problems(tmp_path, TINY)
    assert problem.endswith(f"No such file or directory; try {tmp_path / 'export'}")


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\x00"])
def test_a_config_that_is_none(tmp_path: Path, text: str) -> None:
    write_config(tmp_path, TINY)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match="is no JSON"):
        read_config(tmp_path)
