"""From a TitanSpec to torchtitan's trainer configuration: what all paths share, and the native paths' model."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.config.configs import CommConfig, DebugConfig
from torchtitan.config.override import OverrideConfig, parse_cli_imports
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.tools.logging import logger
from torchtitan.tools.utils import device_type
from torchtitan.trainer import Trainer

from harness.paths import load_path
from harness.titan import cpu, data, measure, native, rope
from harness.titan.checkpoints import PilotCheckpointManager
from harness.titan.spec import DataSpec, TitanSpec
from kernels.plan import KERNELS_ENV

RECOMPUTE = {"none": lambda: None, "selective": SelectiveAC.Config, "full": FullAC.Config}


def spec_or_default(name: str) -> TitanSpec:
    """The launcher's spec, or the path at full scale with torchtitan's own c4_test where no launcher set one."""
    spec = TitanSpec.from_environment(name)
    return spec if spec is not None else default_spec(name)


def default_spec(name: str) -> TitanSpec:
    """The path at full scale over as many ranks as this process belongs to."""
    path = load_path(name)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    return TitanSpec(
        path=name,
        shape=path.full_shape(),
        seq_len=path.full.seq_len,
        local_batch_size=path.full.local_batch_size,
        global_batch_size=path.full.global_batch_size,
        steps=10,
        ranks=ranks,
        device=device_type,
        learning_rate=path.full.learning_rate,
        warmup_steps=path.full.warmup_steps,
        mixed_precision_param=path.full.mixed_precision_param,
        data=DataSpec(),
    )


def native_trainer(config: Trainer.Config, spec: TitanSpec) -> Trainer.Config:
    """The library's configuration with the model, batch, data and precision of ``spec``."""
    masked = "flex" if uses_flex(spec) else "dense_mask"
    assert config.model_spec is not None
    model = native.qwen3_model(spec.shape, attention=masked if spec.document_mask else "causal")
    config.model_spec = dataclasses.replace(config.model_spec, model=model)
    config.loss = ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=spec.shape.vocab))
    return apply(config, spec)


def apply(config: Trainer.Config, spec: TitanSpec) -> Trainer.Config:
    """Everything but the model: batch, data, precision, sharding, checkpoints, and the guards around the model."""
    assert config.model_spec is not None
    data.register(spec.data, ranks=spec.ranks)
    config.model_spec = guarded(config.model_spec, spec)
    config.hf_assets_path = spec.data.tokenizer
    config.dump_folder = spec.dump_folder
    config.dataloader = data.PilotDataLoader.Config(
        dataset=spec.data.name,
        documents=_documents(spec),
        evidence=spec.checkpoint.evidence or "",
        first_step_batches=spec.global_batch_size // (spec.local_batch_size * spec.ranks),
    )
    config.metrics = MetricsProcessor.Config(log_freq=spec.log_freq, disable_color_printing=True)
    config.optimizer = default_adamw(lr=spec.learning_rate)
    config.lr_scheduler = LRSchedulersContainer.Config(warmup_steps=spec.warmup_steps)
    config.training = TrainingConfig(
        local_batch_size=spec.local_batch_size,
        global_batch_size=spec.global_batch_size,
        seq_len=spec.seq_len,
        steps=spec.steps,
        dtype=spec.dtype,
        mixed_precision_param=spec.mixed_precision_param,
        disable_cuda_graphs=True,  # eager, as on Trainium
    )
    config.parallelism = ParallelismConfig(
        data_parallel_shard_degree=spec.ranks,
        spmd_backend=spec.resolved_spmd_backend(torch.__version__),
    )
    config.checkpoint = _checkpoint(spec)
    config.activation_checkpoint = RECOMPUTE[spec.resolved_recompute]()
    config.compile = CompileConfig(enable=spec.compile)
    if spec.compile_backend is not None:
        config.compile.backend = spec.compile_backend
    config.comm = CommConfig(
        init_timeout_seconds=spec.resolved_init_timeout_s, train_timeout_seconds=spec.train_timeout_s
    )
    config.debug = DebugConfig(seed=spec.seed, deterministic=spec.deterministic, enable_structured_logging=False)
    config.override = OverrideConfig(imports=parse_cli_imports(list(spec.override_imports)))
    return config


def swap_in_transformers(parallelize: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """``parallelize`` preceded by the kernel swaps that this run asks for: torchtitan's overrides do not reach inside
    Transformers' models."""
    if not os.environ.get(KERNELS_ENV):
        return parallelize
    from kernels.transformers_swap import from_environment

    return from_environment(parallelize)


def guarded(model_spec: ModelSpec, spec: TitanSpec) -> ModelSpec:
    """``model_spec`` whose model is refused unless it is the one asked for, and checked once it is initialised."""
    parallelize = model_spec.parallelize_fn
    if spec.path.startswith("hf_"):
        parallelize = swap_in_transformers(parallelize)
    after_optimizer = model_spec.post_optimizer_build_fn

    def parallelize_checked(model: nn.Module, **kwargs: Any) -> nn.Module:
        refuse_other_device(spec)
        built = measure.refuse_other_model(model, spec.shape, spec.path)
        shape = built.shape
        report(
            "model",
            True,
            layers=shape.num_layers,
            hidden=shape.hidden,
            experts=shape.num_experts,
            top_k=shape.top_k,
            params=built.total_params,
            active_params=built.active_params,
        )
        model = parallelize(model, **kwargs)
        if device_type == "cpu":
            cpu.use_plain_sums(model)
        return model

    def check_initialised(optimizers: Any, model_parts: list[nn.Module], parallel_dims: Any) -> None:
        for model in model_parts:
            check_initialisation(model, spec)
        if after_optimizer is not None:
            after_optimizer(optimizers, model_parts, parallel_dims)

    return dataclasses.replace(
        model_spec, flavor=spec.path, parallelize_fn=parallelize_checked, post_optimizer_build_fn=check_initialised
    )


def check_initialisation(model: nn.Module, spec: TitanSpec) -> None:
    """Settle and check what initialisation left behind, before any checkpoint is loaded.

    Raises:
        RuntimeError: the RoPE tables are not those of the model; training on would look healthy and be worthless.
    """
    tables = rope.settle(model, spec.shape)
    report("rope_buffers", tables.passed, **dataclasses.asdict(tables), theta=spec.shape.rope_theta)
    if not tables.passed:
        raise RuntimeError(
            f"RoPE tables differ from theta={spec.shape.rope_theta:g}, head_dim={spec.shape.head_dim} "
            f"by {tables.max_abs_diff:g} (at most {rope.TOLERANCE:g} expected) in {tables.modules} modules"
        )
    shared = model.tok_embeddings.weight is model.lm_head.weight
    report("tied_embedding", shared == spec.shape.tied, tied=shared, expected=spec.shape.tied)


def refuse_other_device(spec: TitanSpec) -> None:
    """A figure of one device must never pass for another's: ValueError where torch found something else."""
    if spec.device != device_type:
        hint = ' (hide the accelerator, e.g. with CUDA_VISIBLE_DEVICES="")' if spec.device == "cpu" else ""
        raise ValueError(f"the run is for device {spec.device}, but torch finds {device_type}{hint}")


def uses_flex(spec: TitanSpec) -> bool:
    """Whether document masks go to the library's FlexAttention: it trains on CUDA only."""
    return spec.document_mask and device_type == "cuda"


def report(check: str, passed: bool, **evidence: object) -> None:
    """One line that the log reader turns into a check: ``[pilot] check NAME pass|fail key=value ...``."""
    values = " ".join(f"{key}={value}" for key, value in evidence.items())
    logger.info(f"[pilot] check {check} {'pass' if passed else 'fail'} {values}")


def _documents(spec: TitanSpec) -> str:
    if not spec.document_mask:
        return "ignore"
    return "positions" if uses_flex(spec) else "dense_mask"


def _checkpoint(spec: TitanSpec) -> PilotCheckpointManager.Config:
    checkpoint = spec.checkpoint
    config = PilotCheckpointManager.Config(
        enable=checkpoint.enable,
        load_only=checkpoint.enable and not checkpoint.saves,
        folder=checkpoint.folder,
        initial_load_path=checkpoint.initial_load_path,
        initial_load_in_hf=checkpoint.initial_load_path is not None,
        last_save_in_hf=checkpoint.export_last,
        export_dtype=checkpoint.export_dtype,
        evidence=checkpoint.evidence or "",
        keep_initial=checkpoint.keep_initial,
    )
    if checkpoint.interval is not None:
        config.interval = checkpoint.interval
    return config
