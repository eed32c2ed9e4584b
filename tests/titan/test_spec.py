"""The record between launcher and training process: strict both ways, and shown on the command line (no torch)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from harness.paths import load_path
from harness.titan.spec import SPEC_ENV, CheckpointSpec, DataSpec, TitanSpec, titan_arguments


def make(**changes: Any) -> TitanSpec:
    values: dict[str, Any] = {
        "path": "native_4b",
        "shape": load_path("native_4b").full_shape(),
        "seq_len": 4096,
        "local_batch_size": 1,
        "global_batch_size": 64,
        "steps": 10,
        "ranks": 64,
        "device": "neuron",
        "learning_rate": 3e-4,
        "warmup_steps": 2,
        "data": DataSpec(name="c4_test", files=("/data/c4.json",), tokenizer="/tok"),
    }
    return TitanSpec(**(values | changes))


def test_json_round_trip_keeps_every_value_and_type() -> None:
    spec = make(
        override_imports=("kernels.swaps.nki_rope", 'kernels.swaps.nki_moe={"layers": "*"}'),
        checkpoint=CheckpointSpec(initial_load_path="/weights", export_last=True, interval=5),
        document_mask=True,
        hf_model="/model",
        init_timeout_s=7,
    )
    again = TitanSpec.from_json(spec.to_json())
    assert again == spec
    assert isinstance(again.override_imports, tuple)
    assert isinstance(again.data.files, tuple)


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("stepps",), 3, "unknown key in the training spec: stepps"),
        (("shape", "layers"), 3, "unknown key in the training spec: shape.layers"),
        (("steps",), "10", "steps in the training spec is '10', expected int"),
        (("steps",), True, "steps in the training spec is True, expected int"),
        (("shape", "hidden"), 2560.5, "shape.hidden in the training spec is 2560.5, expected int"),
        (("override_imports",), "kernels.swaps.nki_rope", "expected tuple"),
        (("data",), None, "data is None, expected an object"),
        (("steps",), 0, "steps is 0, expected at least 1"),
        (("device",), "tpu", "device is 'tpu', expected one of cpu, cuda, neuron"),
        (("global_batch_size",), 65, "global batch 65 is no multiple of local batch x ranks = 1 x 64 = 64"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(where: tuple[str, ...], value: object, message: str) -> None:
    document = json.loads(make().to_json())
    place = document
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        TitanSpec.from_json(json.dumps(document))


def test_missing_keys_and_broken_json_are_refused() -> None:
    document = json.loads(make().to_json())
    del document["steps"], document["seq_len"]
    with pytest.raises(ValueError, match="missing key in the training spec: seq_len, steps"):
        TitanSpec.from_json(json.dumps(document))
    with pytest.raises(ValueError, match="no JSON"):
        TitanSpec.from_json("{")


def test_the_environment_names_the_spec_of_this_path_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SPEC_ENV, raising=False)
    assert TitanSpec.from_environment("native_4b") is None
    file = tmp_path / "titan.json"
    monkeypatch.setenv(SPEC_ENV, str(file))
    with pytest.raises(ValueError, match="cannot be read"):
        TitanSpec.from_environment("native_4b")
    file.write_text(make().to_json())
    assert TitanSpec.from_environment("native_4b") == make()
    with pytest.raises(ValueError, match="describes path 'native_4b', but --config asks for 'moe_nki'"):
        TitanSpec.from_environment("moe_nki")


def test_the_command_line_shows_what_will_run() -> None:
    spec = make(override_imports=("kernels.swaps.nki_rope",), deterministic=True)
    expected = (
        "--module harness.titan --config native_4b --training.steps 10 --training.seq_len 4096 "
        "--training.local_batch_size 1 --training.global_batch_size 64 --training.dtype float32 "
        "--training.mixed_precision_param bfloat16 --lr_scheduler.warmup_steps 2 "
        "--parallelism.data_parallel_shard_degree 64 --parallelism.spmd_backend spmd_types "
        "--comm.init_timeout_seconds 3600 --comm.train_timeout_seconds 100 --metrics.log_freq 1 --debug.seed 1 "
        "--dataloader.dataset c4_test --hf_assets_path /tok --dump_folder ./outputs --debug.deterministic "
        "--override.imports kernels.swaps.nki_rope"
    )
    assert titan_arguments(spec, torch_version="2.14.0") == expected.split()


def test_checkpoint_flags_follow_what_is_loaded_and_saved() -> None:
    def flags(checkpoint: CheckpointSpec) -> list[str]:
        arguments = titan_arguments(make(checkpoint=checkpoint))
        return [argument for argument in arguments if argument.startswith("--checkpoint.")]

    assert flags(CheckpointSpec()) == []
    loading = ["--checkpoint.enable", "--checkpoint.folder", "--checkpoint.initial_load_in_hf"]
    loading.append("--checkpoint.initial_load_path")
    assert flags(CheckpointSpec(initial_load_path="/w")) == [*loading, "--checkpoint.load_only"]
    saving = ["--checkpoint.last_save_in_hf", "--checkpoint.export_dtype"]
    assert flags(CheckpointSpec(initial_load_path="/w", export_last=True)) == loading + saving


@pytest.mark.parametrize(
    ("path", "torch", "ranks", "backend"),
    [
        ("native_4b", "2.13.0+cpu", 2, "partial_dtensor"),
        ("native_4b", "2.13.0+cpu", 1, "spmd_types"),
        ("native_4b", "2.14.1", 2, "spmd_types"),
        ("hf_4b", "2.13.0", 2, "spmd_types"),  # the backend takes nothing else
    ],
)
def test_sharding_follows_the_torch_release(path: str, torch: str, ranks: int, backend: str) -> None:
    spec = make(path=path, ranks=ranks, global_batch_size=ranks)
    assert spec.resolved_spmd_backend(torch) == backend
    assert dataclasses.replace(spec, spmd_backend="full_dtensor").resolved_spmd_backend(torch) == "full_dtensor"


def test_recompute_and_patience_depend_on_the_device() -> None:
    cpu = make(device="cpu")
    assert (cpu.resolved_recompute, cpu.resolved_init_timeout_s) == ("none", 300)
    neuron = make()
    assert (neuron.resolved_recompute, neuron.resolved_init_timeout_s) == ("selective", 3600)
    assert make(recompute="full", init_timeout_s=9).resolved_recompute == "full"


def test_own_kernels_are_recognised_by_package() -> None:
    assert make(override_imports=('kernels.swaps.nki_rope={"a": 1}',)).uses_own_kernels
    assert not make(override_imports=("torchtitan.overrides.x", "kernelshop.y")).uses_own_kernels
