"""Planted faults, each found by the check that is named after it, next to a checkpoint that passes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.checkpoint.verify import FAIL, PASS, SKIPPED, verify
from harness.weights import EMBEDDING, HEAD, INDEX, SINGLE
from tests.weights.checkpoints import TINY, TINY_MOE, values_of, write

NAMES = ["config", "index", "shards", "headers", "keys", "shapes", "vocabulary", "finite", "tied_head", "reload"]
UP = "model.layers.0.mlp.up_proj.weight"


def verdicts(place: Path) -> dict[str, str]:
    found = verify(place, reload=False)
    assert [finding.name for finding in found] == NAMES
    return {finding.name: finding.verdict for finding in found}


def the_failure(place: Path) -> tuple[str, str]:
    """Name and evidence of the only check that failed."""
    (failed,) = [finding for finding in verify(place, reload=False) if finding.verdict == FAIL]
    return failed.name, failed.evidence


@pytest.mark.parametrize("dtype", ["BF16", "F32", "F16"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("shape", [TINY, TINY_MOE], ids=["dense", "experts"])
def test_a_good_checkpoint_passes(tmp_path: Path, shape, shards: int, dtype: str) -> None:
    found = verdicts(write(tmp_path, shape, dtype=dtype, shards=shards))
    assert found == dict.fromkeys(NAMES, PASS) | {"reload": SKIPPED}


def test_missing_shard(tmp_path: Path) -> None:
    (write(tmp_path, TINY, shards=3) / "model-00003-of-00003.safetensors").unlink()
    name, evidence = the_failure(tmp_path)
    assert name == "shards"
    assert "names model-00003-of-00003.safetensors, not there" in evidence
    assert verdicts(tmp_path)["finite"] == SKIPPED


def test_index_that_names_an_absent_file(tmp_path: Path) -> None:
    (write(tmp_path, TINY) / INDEX).write_text(json.dumps({"weight_map": {UP: SINGLE, "b": "gone.safetensors"}}))
    name, evidence = the_failure(tmp_path)
    assert name == "shards"
    assert "names gone.safetensors, not there" in evidence


def test_index_that_leads_out_of_the_directory(tmp_path: Path) -> None:
    (write(tmp_path, TINY) / INDEX).write_text(json.dumps({"weight_map": {UP: "../../etc/passwd"}}))
    name, evidence = the_failure(tmp_path)
    assert name == "index"
    assert "names ../../etc/passwd, outside its directory: refused" in evidence


def test_absurd_header_length(tmp_path: Path) -> None:
    (write(tmp_path, TINY) / SINGLE).write_bytes((2**63).to_bytes(8, "little") + b"{}")
    name, evidence = the_failure(tmp_path)
    assert name == "headers"
    assert "claims a header of 9,223,372,036,854,775,808 bytes, but has 10" in evidence


def test_transposed_tensor(tmp_path: Path) -> None:
    values = values_of(TINY)
    values[UP] = values[UP].T
    assert the_failure(write(tmp_path, TINY, values)) == (
        "shapes",
        f"1 mis-shaped: {UP} is [8, 16], expected [16, 8] (transposed)",
    )


def test_missing_and_extra_keys(tmp_path: Path) -> None:
    values = values_of(TINY) | {"odd": np.zeros(3, np.float32)}
    del values["model.norm.weight"]
    assert the_failure(write(tmp_path, TINY, values)) == ("keys", "1 missing: model.norm.weight; 1 extra: odd")


def test_lm_head_untied_and_different(tmp_path: Path) -> None:
    values = values_of(TINY)
    values[HEAD] = values[EMBEDDING].copy()
    assert verdicts(write(tmp_path / "same", TINY, values))["tied_head"] == PASS
    values[HEAD][3, 5] += 0.5
    name, evidence = the_failure(write(tmp_path / "other", TINY, values))
    assert name == "tied_head"
    assert "lm_head.weight is untied and differs from model.embed_tokens.weight by 0.5 at most" in evidence


def test_wrong_vocabulary_size(tmp_path: Path) -> None:
    write(tmp_path, TINY, values_of(replace(TINY, vocab=40)))
    assert the_failure(tmp_path) == (
        "vocabulary",
        "vocab_size is 32 in config.json, but model.embed_tokens.weight has 40 rows",
    )


def test_embedding_of_another_width_is_no_matter_of_the_vocabulary(tmp_path: Path) -> None:
    values = values_of(TINY)
    values[EMBEDDING] = values[EMBEDDING][:, :4]
    assert the_failure(write(tmp_path, TINY, values)) == (
        "shapes",
        f"1 mis-shaped: {EMBEDDING} is [32, 4], expected [32, 8]",
    )


@pytest.mark.parametrize("dtype", ["BF16", "F32", "F16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite(tmp_path: Path, dtype: str, value: float) -> None:
    values = values_of(TINY)
    values[UP][15, 7] = value
    name, evidence = the_failure(write(tmp_path, TINY, values, dtype=dtype, shards=2))
    assert (name, evidence) == ("finite", f"{UP} has 1 of 128 values NaN or infinite ({dtype})")


def test_config_absent(tmp_path: Path) -> None:
    (write(tmp_path, TINY) / "config.json").unlink()
    name, evidence = the_failure(tmp_path)
    assert name == "config"
    assert "config.json cannot be read: No such file or directory" in evidence
    assert verdicts(tmp_path)["keys"] == SKIPPED
    assert verdicts(tmp_path)["finite"] == PASS


def test_without_transformers_the_reload_is_skipped_and_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    reload = verify(write(tmp_path, TINY))[-1]
    assert (reload.verdict, reload.evidence) == (
        SKIPPED,
        "not tried: transformers and torch not installed (pip install '.[train]')",
    )


def test_transformers_is_not_asked_where_a_check_failed(tmp_path: Path) -> None:
    values = values_of(TINY)
    values[UP][0, 0] = np.nan
    reload = verify(write(tmp_path, TINY, values))[-1]
    assert (reload.verdict, reload.evidence) == (SKIPPED, "not tried: finite failed")


@pytest.mark.titan
@pytest.mark.parametrize("shape", [TINY, TINY_MOE], ids=["dense", "experts"])
def test_transformers_loads_a_good_checkpoint(tmp_path: Path, shape) -> None:
    reload = verify(write(tmp_path, shape))[-1]
    assert (reload.name, reload.verdict) == ("reload", PASS), reload.evidence
    assert f"0 / 0 / 0 missing / unexpected / mismatched keys, {shape.num_params():,} parameters" in reload.evidence
