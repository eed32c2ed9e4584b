"""The paths' facts: promises against arithmetic, rehearsals that keep depth and experts, readable errors (no torch)."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import paths
from harness.identity import promise_mismatches
from harness.paths import load_path, path_names

PROMISED = {  # from the guide, and measured on meta builds of torchtitan 0.3.0
    "hf_4b": (36, 2560, 0, 0, 4_022_468_096, 5e6),
    "moe_nki": (4, 2048, 64, 4, 1_906_330_624, 1e6),
    "native_4b": (36, 2560, 0, 0, 4_022_468_096, 1e6),
}


def test_every_path_has_known_facts() -> None:
    assert path_names() == sorted(PROMISED)


@pytest.mark.parametrize("name", PROMISED)
def test_published_values_give_the_promised_model(name: str) -> None:
    path = load_path(name)
    shape = path.full_shape()
    assert (
        shape.num_layers,
        shape.hidden,
        shape.num_experts,
        shape.top_k,
        shape.num_params(),
        shape.rope_theta,
    ) == PROMISED[name]
    assert promise_mismatches(path) == ()
    assert path.published.source.startswith("https://huggingface.co/Qwen/")


def test_the_32b_shape_under_the_name_of_4b_breaks_the_promise() -> None:
    path = load_path("native_4b")
    path.published.num_layers, path.published.hidden = 64, 5120
    path.published.num_heads, path.published.ffn, path.published.tied = 64, 25600, False
    wrong = promise_mismatches(path)
    assert wrong[:2] == ("num_layers is 64, promised 36", "hidden is 5,120, promised 2,560")
    assert "total_params is 32,762,123,264, promised 4,022,468,096" in wrong


def test_the_whole_30b_is_not_the_shrunk_one() -> None:
    path = load_path("moe_nki")
    path.shrink.num_experts = path.shrink.top_k = path.shrink.num_layers = None
    assert "num_experts is 128, promised 64" in promise_mismatches(path)


@pytest.mark.parametrize("name", PROMISED)
def test_a_rehearsal_narrows_widths_only(name: str) -> None:
    path = load_path(name)
    full, rehearsal = path.full_shape(), path.rehearsal_shape()
    for kept in ("num_layers", "num_experts", "top_k", "tied", "rope_theta", "norm_eps"):
        assert getattr(rehearsal, kept) == getattr(full, kept)
    for narrowed in ("hidden", "num_heads", "num_kv_heads", "head_dim", "vocab"):
        assert getattr(rehearsal, narrowed) < getattr(full, narrowed)
    assert rehearsal.num_params() < full.num_params() / 500
    assert path.rehearsal.seq_len % 256 == 0  # kernels for two cores per logical core accept it
    assert path.rehearsal_shape(num_layers=1).num_layers == 1


def test_ranks_of_a_rehearsal_follow_the_torch_release() -> None:
    hf, native = load_path("hf_4b"), load_path("native_4b")
    assert [hf.rehearsal_ranks(version) for version in ("2.13.0+cpu", "2.14.1", None)] == [1, 2, 2]
    assert native.rehearsal_ranks("2.13.0+cpu") == 2


def test_unknown_paths_and_keys_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no path named 'native_8b'; choose one of hf_4b, moe_nki, native_4b"):
        load_path("native_8b")
    monkeypatch.setattr(paths, "CONF_DIR", tmp_path)
    (tmp_path / "odd.yaml").write_text("name: odd\nrehersal: {hidden: 3}\n")
    with pytest.raises(ValueError, match=r"odd\.yaml: Key 'rehersal'"):
        load_path("odd")
    (tmp_path / "odd.yaml").write_text("name: odd\nbackend: jax\n")
    with pytest.raises(ValueError, match="backend is 'jax', expected one of native, transformers"):
        load_path("odd")
