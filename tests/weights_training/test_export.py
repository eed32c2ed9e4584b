"""Exports load in Transformers and in the other modeling code; what does not is said; copies arrive as they are."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy
import pytest

from harness.beside import Beside
from harness.proof import reload_check
from harness.reload import ask
from harness.schema import ExportConfig
from harness.titan.spec import CheckpointSpec
from tests.titan.inprocess import spec_of, train
from tests.weights_training.pilots import KIND, Pilot, logits_of, pilot, planned, proved

pytestmark = pytest.mark.titan

PATHS = ("native_4b", "hf_4b", "moe_nki")
ON = ExportConfig(enabled=True)


@pytest.fixture(scope="module")
def exported(published: Path, folder: Path, beside: Beside) -> dict[str, Pilot]:
    """Three steps of each path from published weights, exported."""
    return {
        name: pilot(name, folder, published / KIND[name], beside, steps=3, export=dataclasses.replace(ON))
        for name in PATHS
    }


@pytest.mark.parametrize("name", PATHS)
def test_transformers_loads_what_was_trained(name: str, exported: dict[str, Pilot]) -> None:
    run = exported[name]
    verdict, evidence = run.check("export_reload")
    assert verdict == "pass"
    assert evidence.startswith("0/0/0 missing/unexpected/mismatched keys; ")
    assert f"{run.plan.shape.num_params():,} parameters, F32; " in evidence
    assert ("lm_head is the embedding" if name != "moe_nki" else "no tied head") in evidence
    assert run.checks["export_reload"].value < (2e-2 if name == "moe_nki" else 1e-4)
    assert ("balancing bias" in evidence) == (name == "moe_nki")
    report = json.loads((run.run.path / "weights.json").read_text())["export"]
    assert report["continuation"]["prompt"] == "The assert statement"
    assert len(report["continuation"]["tokens"]) == 16
    assert report["continuation"]["text"].strip()
    assert {file.name for file in run.export.iterdir()} >= {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
    }
    assert not (run.export / "sharded").exists()


def test_a_router_s_balancing_bias_is_what_an_export_loses(exported: dict[str, Pilot]) -> None:
    logits = json.loads((exported["moe_nki"].run.path / "weights.json").read_text())["export"]["logits"]
    assert 0 < logits["routing_bias"] < 0.01  # three steps of 0.001 and their means
    assert logits["lost"] > 10 * logits["max_abs_diff"]


@pytest.mark.parametrize(("first", "second"), [("hf_4b", "native_4b"), ("native_4b", "hf_4b")])
def test_an_export_of_one_modeling_code_is_the_same_model_in_the_other(
    first: str, second: str, exported: dict[str, Pilot], folder: Path, beside: Beside
) -> None:
    """A learning rate of nothing: the logits after one step are those of the weights that were loaded."""
    found = {}
    for name in (first, second):
        plan, spec, run = planned(
            name,
            folder,
            exported[first].export,
            steps=1,
            train={"learning_rate": 1e-30},
            export=dataclasses.replace(ON),
        )
        trained = train(spec)
        found[name] = logits_of(run)
        checks = proved(plan, spec, run, trained, beside)
        assert {check.verdict for check in checks.values()} == {"pass"}
    assert numpy.abs(found[first] - found[second]).max() < 1e-4
    assert numpy.abs(found[first]).max() > 1.0


@pytest.mark.parametrize("fault", ["config", "shard", "key", "transposed", "theta", "head", "index"])
def test_an_export_that_is_no_longer_the_model_fails(
    fault: str, exported: dict[str, Pilot], beside: Beside, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    good = exported["native_4b"]
    copy = tmp_path / "export"
    shutil.copytree(good.export, copy)
    file = next(copy.glob("*.safetensors"))
    tensors = load_file(file)
    name = "model.layers.0.self_attn.k_proj.weight"
    config = json.loads((copy / "config.json").read_text())
    if fault == "config":
        (copy / "config.json").unlink()
    elif fault == "shard":
        file.unlink()
    elif fault == "index":
        (copy / "model.safetensors.index.json").write_text(
            '{"metadata": {}, "weight_map": {"a": "not-there.safetensors"}}'
        )
    elif fault == "key":
        del tensors[name]
    elif fault == "transposed":
        tensors[name] = tensors[name].t().contiguous()
    elif fault == "theta":
        config["rope_parameters"]["rope_theta"] = 1e4
        (copy / "config.json").write_text(json.dumps(config))
    else:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()
    if fault in ("key", "transposed", "head"):
        (copy / "model.safetensors.index.json").unlink()
        file.unlink()
        save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    answer = ask(beside, copy, probe=good.probe)
    if fault in ("config", "shard", "index"):
        assert answer["loaded"] is False
        assert {"config": "config.json", "shard": file.name, "index": "not-there"}[fault] in answer["error"]
        return
    check = reload_check(answer, expected_params=good.plan.shape.num_params(), tolerance=1e-3)
    assert check.verdict == "fail"
    said = {
        "key": "1/0/0 missing",
        "transposed": "0/0/1 missing",
        "theta": "0/0/0 missing",
        "head": "lm_head should be the embedding and is another",
    }
    assert said[fault] in check.evidence
    assert check.value > 2e-3 if fault == "theta" else True
    untouched = reload_check(
        ask(beside, good.export, probe=good.probe), expected_params=good.plan.shape.num_params(), tolerance=1e-3
    )
    assert untouched.verdict == "pass"


# -- what cannot be exported, and copies ---------------------------------------------------------------------------


def test_a_mixture_of_experts_through_the_transformers_backend_is_not_exported(folder: Path) -> None:
    """torchtitan 0.3.0 would write keys that Transformers does not know."""
    spec = spec_of("moe_nki", folder)
    with pytest.raises(ValueError, match=r"saves a mixture of experts under keys .* path=moe_nki"):
        dataclasses.replace(spec, path="hf_moe", checkpoint=CheckpointSpec(export_last=True))
    dataclasses.replace(spec, checkpoint=CheckpointSpec(export_last=True))


def test_an_export_without_logits_or_weights_fails(published: Path, folder: Path, beside: Beside) -> None:
    plan, spec, run = planned("native_4b", folder, published / "dense", steps=1, export=dataclasses.replace(ON))
    trained = train(spec)
    (run.path / "evidence" / "logits.npz").unlink()
    check = proved(plan, spec, run, trained, beside)["export_reload"]
    assert check.verdict == "fail"
    assert "left no logits to compare with" in check.evidence
    assert "no export" in proved(plan, spec, run, trained, beside)["export_reload"].evidence  # it has been moved away


def test_a_copy_is_read_back(published: Path, folder: Path, beside: Beside, tmp_path: Path) -> None:
    asked = ExportConfig(copy_to=f"file://{tmp_path}/elsewhere", dtype="bfloat16")
    run = pilot("hf_4b", folder, published / "dense", beside, steps=1, export=asked)
    verdict, evidence = run.check("export_copy")
    there = tmp_path / "elsewhere" / run.run.run_id
    files = {file.name: file.read_bytes() for file in run.export.iterdir()}
    assert {file.name: file.read_bytes() for file in there.iterdir()} == files
    assert verdict == "pass"
    assert evidence.startswith(f"{len(files)} files, {sum(map(len, files.values())):,} bytes at file://")
    record = json.loads((run.run.path / "weights.json").read_text())["copy"]
    assert {file["name"] for file in record["files"]} == set(files)
    assert "BF16" in run.check("export_reload")[1]
    assert run.check("export_reload")[0] == "pass"
