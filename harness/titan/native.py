"""Qwen3 in torchtitan's own modeling code, dense or mixture of experts, from a ModelShape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torchtitan.models import qwen3
from torchtitan.models.common import CosSinRoPE, Embedding, Linear
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
from torchtitan.models.common.nn_modules import RMSNorm
from torchtitan.models.qwen3 import Qwen3Model
from torchtitan.protocols.module import Module

from harness.shapes import ModelShape


class MaskedAttention(Module):
    """Scaled dot-product attention under a dense boolean mask, for devices on which FlexAttention cannot train."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__()

    def forward(
        self,
        q_BLNH: torch.Tensor,  # torchtitan's sharding rules know these three by name
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: torch.Tensor,
        scale: float | None = None,
        enable_gqa: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Attend; query, key, value and the result are [B, L, heads, head_dim], the mask is [B, 1, L, L]."""
        query, key, value = (tensor.transpose(1, 2) for tensor in (q_BLNH, k_BLNH, v_BLNH))
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_masks, scale=scale, enable_gqa=enable_gqa
        )
        return out.transpose(1, 2)


INNER_ATTENTION = {
    "causal": ScaledDotProductAttention.Config,
    "dense_mask": MaskedAttention.Config,
    "flex": FlexAttention.Config,
}


def qwen3_model(shape: ModelShape, *, attention: str) -> Qwen3Model.Config:
    """The library's Qwen3 configuration for ``shape``.

    Layers come from the library's own builders, so that initialisation and module layout are the library's; only their
    sizes and the attention module are ours.

    Args:
        attention: key of INNER_ATTENTION.
    """
    sizes = {
        "n_layers": shape.num_layers,
        "dim": shape.hidden,
        "n_heads": shape.num_heads,
        "n_kv_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "fuse_qkv": True,
        "attn_backend": "flex",
        "rope": CosSinRoPE.Config(dim=shape.head_dim, max_seq_len=shape.max_positions, theta=shape.rope_theta),
    }
    if shape.is_moe:
        layers = qwen3._build_qwen3_moe_layers(
            **sizes,
            moe_hidden_dim=shape.moe_ffn,
            num_experts=shape.num_experts,
            top_k=shape.top_k,
            moe_comm_backend="standard",
        )
    else:
        layers = qwen3._build_qwen3_layers(**sizes, hidden_dim=shape.ffn)
    for layer in layers:
        layer.attention.inner_attention = INNER_ATTENTION[attention]()
    # A tied embedding takes the head's initialised weight.
    embedding_init = qwen3._EMBEDDING_SKIP_INIT if shape.tied else qwen3._EMBEDDING_INIT
    model = Qwen3Model.Config(
        vocab_size=shape.vocab,
        dim=shape.hidden,
        norm=qwen3._qwen3_norm(shape.hidden),
        enable_weight_tying=shape.tied,
        tok_embeddings=Embedding.Config(
            num_embeddings=shape.vocab, embedding_dim=shape.hidden, param_init=embedding_init
        ),
        lm_head=Linear.Config(in_features=shape.hidden, out_features=shape.vocab, param_init=qwen3._LINEAR_INIT),
        layers=layers,
    )
    for _, norm, _, _ in model.traverse(RMSNorm.Config):
        norm.eps = shape.norm_eps
    return model
