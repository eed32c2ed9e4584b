"""Qwen3 through torchtitan's Transformers modeling backend: the class that Transformers itself would load."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.experiments.transformers_modeling_backend import HFTransformerModel, TitanModelConfig
from torchtitan.experiments.transformers_modeling_backend.configs import TransformersBackendConfig
from transformers import AttentionInterface

from harness.titan import build
from harness.titan.assets import transformers_config
from harness.titan.spec import TitanSpec

ATTENTION = "pilot_sdpa"
"""Name under which our attention function is registered with Transformers."""
CACHE_ENV = "PILOT_CACHE"


def scaled_dot_product(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in Transformers' interface, causal without a mask; the backend's own FlexAttention cannot train on CPU.

    query, key and value are [B, heads, L, head_dim], the result is [B, L, heads, head_dim]; a mask is [B, 1, L, L],
    true where attention is allowed.
    """
    out = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        is_causal=attention_mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out.transpose(1, 2).contiguous(), None


def transformers_trainer(config: TransformersBackendConfig, spec: TitanSpec) -> TransformersBackendConfig:
    """The library's configuration with the model, batch, data and precision of ``spec``."""
    AttentionInterface.register(ATTENTION, scaled_dot_product)
    mask = "block_causal" if spec.document_mask else "causal"
    model = HFTransformerModel.Config(model_config=TitanModelConfig(attn_mask_type=mask))
    if not build.uses_flex(spec):
        model._attn_implementation = ATTENTION
    assert config.model_spec is not None
    config.model_spec = dataclasses.replace(config.model_spec, model=model)
    config.loss = CrossEntropyLoss.Config()
    config.hf_model = spec.hf_model or str(transformers_config(spec.shape, cache=_cache()))
    built = build.apply(config, spec)
    assert isinstance(built, TransformersBackendConfig)
    return built


def _cache() -> Path:
    return Path(os.environ.get(CACHE_ENV, "runs/.cache"))
