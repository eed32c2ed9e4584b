"""Kernels in real trainings, in this process: swaps applied, calls made, losses kept. Seconds, on CPU."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from unittest import mock

import pytest

from kernels import backend, override_registry
from kernels.backend import Calls
from kernels.plan import SwapPlan, plan_swaps
from tests.titan import inprocess
from tests.titan.inprocess import Trained, spec_of, train

pytestmark = pytest.mark.titan
ROPE_LOSS = 1e-5
FIRST_EXPERT_LOSS = 1e-3
"""Experts round to bfloat16 in other places than the library; training then amplifies the difference."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("swaps")


@pytest.fixture(autouse=True)
def prepared() -> None:
    inprocess.prepare_process()


def swaps_of(trained: Trained) -> list[tuple[str, str]]:
    """(kernel, module) of every swap that the log shows."""
    words = [line.split() for line in trained.lines if line.startswith("[Override] kernels.swaps.")]
    return [(line[1].removeprefix("kernels.swaps.").rstrip(":"), line[2]) for line in words]


def train_with(plan: SwapPlan, workspace: Path, name: str, where: str = "reference", **changes: object) -> Trained:
    """Train path ``name`` with the swaps of ``plan``; the report of the kernels is appended to its lines."""
    from harness.titan import build
    from kernels import transformers_swap

    guarded = build.guarded

    def guarded_and_swapped(model_spec, spec):
        if spec.transformers_backend:
            parallelize = transformers_swap.from_environment(model_spec.parallelize_fn)
            model_spec = dataclasses.replace(model_spec, parallelize_fn=parallelize)
        return guarded(model_spec, spec)

    spec = spec_of(name, workspace, override_imports=plan.override_imports, **changes)
    with (
        backend.isolated(where, lnc=2),
        mock.patch.dict("os.environ", plan.environment),
        mock.patch.object(build, "guarded", guarded_and_swapped),
    ):
        trained = train(spec)
        backend.report(trained.lines.append)
    return trained


def calls_of(trained: Trained) -> dict[str, tuple[str, Calls]]:
    """What the last lines report, by kernel."""
    words = [line.split() for line in trained.lines if line.startswith("[pilot] kernel ")]
    values = {line[2]: dict(item.split("=") for item in line[3:]) for line in words}
    return {
        kernel: (value["backend"], Calls(int(value["forward"]), int(value["backward"])))
        for kernel, value in values.items()
    }


CASES = {
    "native_4b": plan_swaps("nki_rope", num_layers=2),
    "hf_4b": plan_swaps("nki_rope", num_layers=2, transformers=True),
    "moe_nki": plan_swaps("nki_all", num_layers=2, has_experts=True),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_stay_the_same_and_every_call_is_made(name: str, workspace: Path) -> None:
    plan = CASES[name]
    plain = train(spec_of(name, workspace))
    swapped = train_with(plan, workspace, name)
    limits = [ROPE_LOSS] * 10 if name != "moe_nki" else [FIRST_EXPERT_LOSS]
    assert len(swapped.losses) == len(plain.losses) == 10
    for step, limit in enumerate(limits):
        assert swapped.losses[step] == pytest.approx(plain.losses[step], abs=limit), step
    found = swaps_of(swapped)
    assert {kernel: sum(k == kernel for k, _ in found) for kernel, _ in found} == plan.expected_swaps
    assert len(set(found)) == len(found)
    expected = plan.expected_calls(steps=10)
    assert calls_of(swapped) == {kernel: ("reference", calls) for kernel, calls in expected.items()}
    assert swaps_of(plain) == []


@pytest.mark.parametrize(("name", "layers"), [("native_4b", 36), ("hf_4b", 36), ("moe_nki", 4)])
def test_every_layer_of_the_paths_depth_is_swapped(name: str, layers: int, workspace: Path) -> None:
    plan = plan_swaps(
        "nki_all" if name == "moe_nki" else "nki_rope",
        num_layers=layers,
        transformers=name == "hf_4b",
        has_experts=name == "moe_nki",
    )
    trained = train_with(plan, workspace, name, num_layers=layers, steps=1)
    assert len(swaps_of(trained)) == layers * len(plan.kernels)
    assert calls_of(trained) == dict.fromkeys(plan.kernels, ("reference", Calls(layers, layers)))


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("name", CASES)
def test_recomputation_calls_forward_twice(name: str, recompute: str, workspace: Path) -> None:
    plan = CASES[name]
    trained = train_with(plan, workspace, name, recompute=recompute, steps=2)
    expected = plan.expected_calls(steps=2, recompute=recompute)
    assert expected[plan.kernels[0]] == Calls(8, 4)
    assert calls_of(trained) == {kernel: ("reference", calls) for kernel, calls in expected.items()}


def test_gradient_accumulation_multiplies_the_calls(workspace: Path) -> None:
    plan = CASES["native_4b"]
    trained = train_with(plan, workspace, "native_4b", steps=2, global_batch_size=6)
    assert calls_of(trained) == {"nki_rope": ("reference", Calls(12, 12))}
    assert plan.expected_calls(steps=2, micro_batches=3) == {"nki_rope": Calls(12, 12)}


def test_the_kernels_own_source_trains_in_the_simulator(workspace: Path) -> None:
    plan = plan_swaps("nki_all", num_layers=1, has_experts=True)
    runs = {
        where: train_with(plan, workspace, "moe_nki", where, num_layers=1, steps=2)
        for where in ("reference", "simulator")
    }
    assert calls_of(runs["simulator"]) == dict.fromkeys(plan.kernels, ("simulator", Calls(2, 2)))
    assert runs["simulator"].losses == pytest.approx(runs["reference"].losses, abs=1e-4)


def test_compiled_blocks_call_the_kernels_as_often(workspace: Path) -> None:
    plan = CASES["moe_nki"]
    trained = train_with(plan, workspace, "moe_nki", steps=2, compile=True, compile_backend="aot_eager")
    assert calls_of(trained) == dict.fromkeys(plan.kernels, ("reference", Calls(4, 4)))


def test_single_layers_of_a_native_model(workspace: Path) -> None:
    plan = plan_swaps("nki_all", num_layers=4, layers="1,3", has_experts=True)
    trained = train_with(plan, workspace, "moe_nki", num_layers=4, steps=1)
    assert {module.split(".")[3] for _, module in swaps_of(trained)} == {"1", "3"}
    assert calls_of(trained) == dict.fromkeys(plan.kernels, ("reference", Calls(2, 2)))


def test_single_layers_of_a_transformers_model(workspace: Path) -> None:
    plan = plan_swaps("nki_rope", num_layers=4, layers="1,3", transformers=True)
    trained = train_with(plan, workspace, "hf_4b", num_layers=4, steps=1)
    assert [module for _, module in swaps_of(trained)] == [
        f"model_spec.model.model.model.layers.{number}.self_attn" for number in (1, 3)
    ]
    assert calls_of(trained) == {"nki_rope": ("reference", Calls(2, 2))}


# -- what must not go unnoticed -----------------------------------------------------------------------------------


def test_a_fallback_planted_in_the_op_is_seen_in_the_calls(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.rope import launch, reference

    def fallback(query, key, cache):
        return reference.rotate(query, cache).contiguous(), reference.rotate(key, cache).contiguous()

    monkeypatch.setattr(launch, "forward", fallback)
    plan = CASES["native_4b"]
    trained = train_with(plan, workspace, "native_4b", steps=2)
    assert len(swaps_of(trained)) == 2  # requested and applied ...
    expected = plan.expected_calls(steps=2)["nki_rope"]
    assert calls_of(trained)["nki_rope"] == ("reference", Calls(0, expected.backward))  # ... but not executed


def test_a_model_whose_kernel_never_runs_reports_zero(workspace: Path) -> None:
    from kernels.swaps import NkiRoPE

    with backend.isolated("reference", lnc=2):
        NkiRoPE(NkiRoPE.Config(dim=16, max_seq_len=256))
        assert backend.report_lines() == ["[pilot] kernel nki_rope backend=reference forward=0 backward=0"]


def test_positions_that_restart_at_documents_are_refused(workspace: Path) -> None:
    with pytest.raises(ValueError, match="nki_rope has no gather: positions must be 0, 1, 2"):
        train_with(CASES["native_4b"], workspace, "native_4b", document_mask=True)


def test_a_sequence_length_that_the_device_refuses_is_refused_in_a_rehearsal(workspace: Path) -> None:
    with pytest.raises(ValueError, match=r"sequence length 200 does not fit kernel nki_rope.*nearest: 256"):
        train_with(CASES["hf_4b"], workspace, "hf_4b", seq_len=200)


def test_weights_keep_their_names(workspace: Path) -> None:
    with backend.isolated("reference", lnc=2):
        names = []
        for imports in ((), CASES["moe_nki"].override_imports):
            with inprocess.training(spec_of("moe_nki", workspace, override_imports=imports)) as (trainer, _):
                names.append(list(trainer.model_parts[0].state_dict()))
    assert names[0] == names[1]


def test_a_subclass_with_another_contract_is_refused() -> None:
    from torchtitan.models.common import CosSinRoPE

    from kernels import swaps

    class OtherRoPE(CosSinRoPE):
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(CosSinRoPE.Config):
            pass

    with pytest.raises(ValueError, match=r"replaces CosSinRoPE\.Config, but this model uses .*OtherRoPE\.Config"):
        swaps.nki_rope(OtherRoPE.Config(dim=16, max_seq_len=256))


def test_a_transformers_model_without_that_function_is_refused() -> None:
    import torch

    from kernels import transformers_swap

    with pytest.raises(ValueError, match="Linear calls apply_rotary_pos_emb in no attention of any layer"):
        transformers_swap.swap_rope(torch.nn.Linear(2, 2))


def test_swapping_twice_is_swapping_once(workspace: Path) -> None:
    from kernels import transformers_swap

    with backend.isolated("reference", lnc=2), inprocess.training(spec_of("hf_4b", workspace)) as (trainer, _):
        model = trainer.model_parts[0]
        assert [transformers_swap.swap_rope(model, (1,)), transformers_swap.swap_rope(model)] == [1, 1]


def test_without_a_request_a_transformers_model_is_left_alone() -> None:
    from kernels import transformers_swap

    def parallelize(model):
        return model

    assert transformers_swap.from_environment(parallelize) is parallelize


# -- the registry of torchtitan -----------------------------------------------------------------------------------


def test_the_registry_is_found() -> None:
    assert override_registry.find().place == "torchtitan.config.override"
    assert override_registry.why_no_registry() is None


def test_a_registry_under_another_name_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "fork" / "config"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "override.py").write_text("def override(**kwargs): ...\ndef derive(source, target): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(override_registry, "PLACES", ("no_such_package.overrides", "fork.config.override"))
    importlib.invalidate_caches()
    assert override_registry.find().place == "fork.config.override"
    assert override_registry.why_no_registry() is None


def test_without_a_registry_the_reason_is_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(override_registry, "PLACES", ("torchtitan.no_such_module", "no_such_package.config.override"))
    message = (
        r"torchtitan 0\.3\.0 has no registry of overrides, so no kernel can be swapped in: looked for "
        r"torchtitan\.no_such_module, no_such_package\.config\.override\. Use kernel=baseline, or torchtitan >= 0\.3\.0"
    )
    with pytest.raises(override_registry.NoOverrideRegistry, match=message):
        override_registry.find()
    assert override_registry.why_no_registry() is not None
