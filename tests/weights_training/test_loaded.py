"""Published weights are really the ones that train: bands, the reference loss, and planted faults that it names."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest

from harness.beside import Beside
from harness.checks import failed_names
from harness.schema import ChecksConfig, TrainConfig
from tests.titan.inprocess import train
from tests.weights_training.pilots import KIND, pilot, planned, proved

pytestmark = pytest.mark.titan

PATHS = ("native_4b", "hf_4b", "moe_nki")
REFERENCE = "reference_loss_diff"


@pytest.mark.parametrize("name", PATHS)
def test_published_weights_start_far_below_random_ones_and_where_transformers_does(
    name: str, published: Path, folder: Path, beside: Beside
) -> None:
    given = pilot(name, folder, published / KIND[name], beside, steps=1)
    fresh = pilot(name, folder, None, beside, steps=1)
    assert given.trained.losses[0] < fresh.trained.losses[0] - 1.5
    for run in (given, fresh):
        assert run.check("first_step_loss")[0] == "pass"
        assert run.checks["first_step_loss"].value == run.trained.losses[0]
    verdict, evidence = given.check(REFERENCE)
    assert verdict == "pass"
    assert "plain Transformers" in evidence
    limit, reason = (1e-2, "grouped experts compute in bfloat16") if name == "moe_nki" else (1e-3, "at most 0.001")
    assert given.checks[REFERENCE].value <= limit
    assert reason in evidence
    assert given.check("rope_theta_of_weights")[0] == "pass"
    assert REFERENCE not in fresh.checks
    assert not (given.run.path / "evidence").exists()


def test_random_weights_are_kept_and_compared_where_asked_for(folder: Path, beside: Beside) -> None:
    run = pilot("moe_nki", folder, None, beside, steps=1, checks=ChecksConfig(reference_loss="always"))
    assert run.check(REFERENCE)[0] == "pass"
    assert set(run.checks) == {"first_step_loss", REFERENCE}


def test_all_micro_batches_count_and_documents_are_masked_alike(published: Path, folder: Path, beside: Beside) -> None:
    changes = {"document_mask": True, "dtype": "bfloat16"}
    run = pilot("hf_4b", folder, published / "dense", beside, steps=1, sequences=4, train=changes)
    verdict, evidence = run.check(REFERENCE)
    assert verdict == "pass"
    assert "the same 1,024 tokens" in evidence
    assert "0.01, since the training computes in bfloat16" in evidence


def test_the_two_modeling_codes_agree_on_the_first_loss_and_on_twenty_steps(published: Path, folder: Path) -> None:
    losses = {}
    for name in ("native_4b", "hf_4b"):
        _, spec, _ = planned(name, folder, published / "dense", steps=20)
        losses[name] = train(spec).losses
    assert losses["native_4b"][0] == pytest.approx(losses["hf_4b"][0], abs=1e-4)
    assert losses["native_4b"] == pytest.approx(losses["hf_4b"], abs=1e-3)
    assert len(losses["hf_4b"]) == 20


# -- planted faults -----------------------------------------------------------------------------------------------


def faulty(published: Path, folder: Path, beside: Beside, name: str = "native_4b", **changes: Any) -> str:
    """Train with ``changes`` to the spec that the plan does not know of; the evidence of the failed check."""
    plan, spec, run = planned(name, folder, published / "dense", steps=1, sequences=4)
    checks = proved(plan, spec, run, train(dataclasses.replace(spec, **changes)), beside)
    assert checks[REFERENCE].verdict == "fail"
    assert REFERENCE in failed_names(checks.values())
    assert (run.path / "evidence" / "batch-0.npz").is_file()  # kept, to look into it
    return checks[REFERENCE].evidence.partition("; fits: ")[2]


@pytest.mark.parametrize("garbage", [0.0, 4.6e-41, 0.37])
def test_rope_buffers_left_uninitialised_are_named(
    garbage: float, published: Path, folder: Path, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchtitan 0.3.0 leaves them, and with the check of the buffers itself looking away."""
    from harness.titan import rope

    def leave(model: Any, shape: Any) -> rope.RopeState:
        model.rotary_emb.inv_freq.fill_(garbage)
        return rope.RopeState(modules=1, restored=0, max_abs_diff=0.0)

    monkeypatch.setattr(rope, "settle", leave)
    fits = faulty(published, folder, beside, "hf_4b")
    assert fits.startswith(
        "rope_buffers (the training's RoPE table is not that of theta 5e+06: as if never initialised)"
    )
    assert "document_mask" not in fits


def test_the_other_theta_is_named(published: Path, folder: Path, beside: Beside) -> None:
    _, spec, _ = planned("native_4b", folder, None)
    fits = faulty(published, folder, beside, shape=dataclasses.replace(spec.shape, rope_theta=1e6))
    assert fits.startswith("rope_theta (the training's RoPE table has theta 1e+06, config.json 5e+06)")
    assert "rope_buffers" not in fits


def test_a_config_that_lies_about_theta_is_seen_though_everything_agrees(
    published: Path, folder: Path, beside: Beside, tmp_path: Path
) -> None:
    """config.json, spec and reference say 1e6, but the weights were trained with 5e6."""
    lying = edited(published, tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    plan, changed, run = planned("native_4b", folder, lying, theta=1e6, steps=1, sequences=64)
    checks = proved(plan, changed, run, train(changed), beside)
    assert checks[REFERENCE].verdict == "pass"
    verdict, evidence = checks["rope_theta_of_weights"].verdict, checks["rope_theta_of_weights"].evidence
    assert verdict == "fail"
    assert "predict better with theta 5e+06" in evidence
    assert "theta 1e+06 of config.json" in evidence
    assert failed_names(checks.values()) == []  # reported; a failure of the run with checks=strict
    strict = dataclasses.replace(plan, config=dataclasses.replace(plan.config, checks=ChecksConfig(strict=True)))
    again = proved(strict, changed, run, train(changed), beside)
    assert failed_names(again.values()) == ["rope_theta_of_weights"]


def test_a_head_of_its_own_that_training_ties_is_named(
    published: Path, folder: Path, beside: Beside, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    other = edited(published, tmp_path)
    tensors = load_file(other / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    plan, spec, run = planned("native_4b", folder, other, steps=1)
    checks = proved(plan, spec, run, train(spec), beside)
    assert checks[REFERENCE].verdict == "fail"
    assert "fits: tied_head (the head is the embedding (config.json ties them" in checks[REFERENCE].evidence


def test_another_mask_is_named(published: Path, folder: Path, beside: Beside) -> None:
    fits = faulty(published, folder, beside, document_mask=True)
    assert fits.startswith("document_mask (attention within documents")


def test_weights_that_were_never_loaded_are_named(published: Path, folder: Path, beside: Beside) -> None:
    plan, spec, run = planned("native_4b", folder, published / "dense", steps=1)
    fresh = dataclasses.replace(spec.checkpoint, initial_load_path=None, keep_initial=True)
    checks = proved(plan, spec, run, train(dataclasses.replace(spec, checkpoint=fresh)), beside)
    assert checks["first_step_loss"].verdict == "fail"
    assert not checks["first_step_loss"].blocking
    assert "fits: not_loaded (the loss is that of random weights)" in checks[REFERENCE].evidence


def test_missing_keys_are_named(published: Path, folder: Path, beside: Beside, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    plan, spec, run = planned("native_4b", folder, published / "dense", steps=1)
    trained = train(spec)
    fewer = edited(published, tmp_path)
    tensors = load_file(fewer / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, fewer / "model.safetensors", metadata={"format": "pt"})
    given = dataclasses.replace(spec.checkpoint, initial_load_path=str(fewer))
    checks = proved(plan, dataclasses.replace(spec, checkpoint=given), run, trained, beside)
    assert "missing_keys (1, e.g. model.layers.1.mlp.up_proj.weight)" in checks[REFERENCE].evidence


def test_a_head_that_came_apart_in_training_is_seen(
    published: Path, folder: Path, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tying lost after meta initialisation: head and embedding are two tensors, and differ."""
    import torch

    from harness.titan import checkpoints

    describe = checkpoints.describe_start

    def come_apart(model: Any, file: Path) -> None:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().roll(1, 0))
        describe(model, file)

    monkeypatch.setattr(checkpoints, "describe_start", come_apart)
    fits = faulty(published, folder, beside, "hf_4b")
    assert fits.startswith("tied_head (the training's head is ")
    assert "away from its embedding)" in fits


def edited(published: Path, place: Path, **config: object) -> Path:
    """A copy of the dense model with another config.json."""
    copy = place / "edited"
    shutil.copytree(published / "dense", copy)
    said = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(said | config))
    return copy


def test_no_reference_is_no_pass(published: Path, folder: Path, beside: Beside) -> None:
    plan, spec, run = planned("native_4b", folder, published / "dense", steps=1)
    trained = train(spec)
    numpy.savez(run.path / "evidence" / "batch-0.npz", tokens=numpy.zeros((1, 2, 4)))
    checks = proved(plan, spec, run, trained, beside)
    assert checks[REFERENCE].verdict == "fail"
    assert checks[REFERENCE].evidence.startswith("no reference: KeyError")
    (run.path / "evidence" / "batch-0.npz").unlink()
    assert "left no batch-0.npz" in proved(plan, spec, run, trained, beside)[REFERENCE].evidence


def test_the_tokenizer_is_the_weights_own_unless_another_is_named(published: Path, folder: Path) -> None:
    assert TrainConfig().document_mask is False
    _, spec, _ = planned("native_4b", folder, published / "dense")
    assert spec.data.tokenizer == str((published / "dense").resolve())
    _, spec, _ = planned("native_4b", folder, None)
    assert "/.cache/bpe2048-" in spec.data.tokenizer
