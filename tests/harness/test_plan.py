"""Gaps of a configuration are filled from path and platform (no torch)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness import plan as planning
from harness.config_checks import nearest_multiples
from harness.data import DataConfig
from harness.paths import load_path
from harness.plan import ConfigError, find_data, find_platform, make_plan
from harness.schema import PilotConfig, PlatformConfig, ScaleConfig, TrainConfig

TRN2 = PlatformConfig(name="trn2_48xlarge", device="neuron", chip="trn2", num_ranks=64, num_chips=16, lnc=2)
CPU = PlatformConfig(name="cpu", device="cpu")


def config(path: str = "native_4b", platform: PlatformConfig = CPU, **fields: object) -> PilotConfig:
    return PilotConfig(path=load_path(path), platform=platform, data=DataConfig(name="auto", kind="auto"), **fields)


def test_full_scale_on_trainium_is_what_the_path_promises() -> None:
    plan = make_plan(config(platform=TRN2))
    train = plan.config.train
    assert (plan.ranks, train.local_batch_size, train.global_batch_size, plan.micro_batches) == (64, 1, 64, 1)
    assert (plan.rehearsal, plan.shape.num_params(), plan.shape.num_layers) == (False, 4_022_468_096, 36)
    assert plan.tokens_per_step == 64 * 4096


def test_rehearsal_narrows_widths_but_not_depth_or_experts() -> None:
    plan = make_plan(config("moe_nki"))
    assert plan.rehearsal
    assert (plan.shape.num_layers, plan.shape.num_experts, plan.shape.top_k) == (4, 64, 4)
    assert plan.shape.hidden == 64
    assert plan.config.rehearsal


def test_users_values_win() -> None:
    train = TrainConfig(seq_len=512, local_batch_size=1, global_batch_size=8, dtype="bfloat16", learning_rate=1e-4)
    plan = make_plan(config(train=train, scale=ScaleConfig(num_layers=3)))
    assert plan.config.train == replace(train, warmup_steps=plan.config.train.warmup_steps)
    assert (plan.micro_batches, plan.shape.num_layers) == (4, 3)


def test_ranks_of_the_transformers_backend_depend_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "torch_version", lambda: "2.13.0+cpu")
    assert make_plan(config("hf_4b")).ranks == 1
    with pytest.raises(
        ConfigError, match=r"one CPU rank with torch 2.13.0\+cpu: platform.num_ranks=1, or torch >= 2.14"
    ):
        make_plan(config("hf_4b", replace(CPU, num_ranks=2)))
    monkeypatch.setattr(planning, "torch_version", lambda: "2.14.1")
    assert make_plan(config("hf_4b")).ranks == 2


def test_cuda_elsewhere_has_to_be_told_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "num_cuda_devices", lambda: 0)
    with pytest.raises(ConfigError, match="platform.num_ranks=8"):
        make_plan(config(platform=PlatformConfig(name="cuda", device="cuda")))
    assert make_plan(config(platform=PlatformConfig(name="cuda", device="cuda", num_ranks=8))).micro_batches == 8


def test_auto_takes_the_machines_platform_and_keeps_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "detect_platform", lambda: "trn2_48xlarge")
    found = find_platform(PlatformConfig(name="auto", price_per_hour=10.5, num_ranks=32))
    assert (found.name, found.device, found.lnc, found.num_chips) == ("trn2_48xlarge", "neuron", 2, 16)
    assert (found.price_per_hour, found.num_ranks) == (10.5, 32)
    assert found.env["NEURON_LOGICAL_NC_CONFIG"] == "2"
    assert find_platform(CPU) is CPU


def test_zero_ranks_of_auto_are_not_mistaken_for_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "detect_platform", lambda: "cpu")
    with pytest.raises(ConfigError, match="platform.num_ranks=0"):
        make_plan(config(platform=PlatformConfig(name="auto", num_ranks=0)))


def test_data_auto(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    auto = DataConfig(name="auto", kind="auto")
    monkeypatch.delenv("TORCHTITAN_DIR", raising=False)
    assert find_data(auto, rehearsal=False).name == "pydoc"
    (tmp_path / "tests/assets/c4_test").mkdir(parents=True)
    monkeypatch.setenv("TORCHTITAN_DIR", str(tmp_path))
    assert find_data(auto, rehearsal=True).name == "pydoc"
    found = find_data(auto, rehearsal=False)
    assert (found.name, found.kind, found.checkout) == ("c4_test", "c4_test", str(tmp_path))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"train": TrainConfig(dtype="float16")}, "train.dtype=float16: one of bfloat16, float32 was expected"),
        ({"train": TrainConfig(learning_rate=0.0)}, "train.learning_rate=0.0: a positive number was expected"),
        ({"train": TrainConfig(learning_rate=float("nan"))}, "train.learning_rate=nan"),
        ({"train": TrainConfig(seed=-1)}, "train.seed=-1: at least 0 was expected"),
        ({"replicate": -1}, "replicate=-1: at least 0 was expected"),
        ({"experiment_name": ".hidden"}, "experiment_name='.hidden'"),
        ({"platform": replace(TRN2, lnc=3)}, "platform.lnc=3: one of 1, 2 was expected"),
        ({"platform": replace(TRN2, lnc=None)}, "platform.lnc=None: one of 1, 2 was expected"),
    ],
)
def test_impossible_values_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_plan(config(**fields))
    assert message in str(error.value)


def test_nearest_multiples() -> None:
    assert nearest_multiples(600, 256) == "512 or 768"
    assert nearest_multiples(100, 256) == "256"
