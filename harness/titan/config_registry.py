"""The three paths as torchtitan configuration functions: ``--module harness.titan --config native_4b``.

Each builds from the spec that ``PILOT_SPEC`` names, or, standing alone, the path at full scale with the published
values. torchtitan applies command-line flags on top.
"""

from __future__ import annotations

from torchtitan.trainer import Trainer

from harness.titan.build import native_trainer, spec_or_default


def native_4b() -> Trainer.Config:
    """Qwen3-4B: the library's 32B training configuration with its model replaced."""
    from torchtitan.models.qwen3.config_registry import qwen3_32b

    return native_trainer(qwen3_32b(), spec_or_default("native_4b"))


def moe_nki() -> Trainer.Config:
    """Qwen3-30B-A3B cut to 4 layers and 64 experts, 4 of them per token."""
    from torchtitan.models.qwen3.config_registry import qwen3_30b_a3b

    return native_trainer(qwen3_30b_a3b(), spec_or_default("moe_nki"))


def hf_4b() -> Trainer.Config:
    """Qwen3-4B-Instruct-2507 as Transformers builds it, trained by torchtitan."""
    from torchtitan.experiments.transformers_modeling_backend.config_registry import transformers_modeling_backend_full

    from harness.titan.transformers_path import transformers_trainer

    return transformers_trainer(transformers_modeling_backend_full(), spec_or_default("hf_4b"))
