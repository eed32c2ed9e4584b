"""What a built model really is: its shape and its parameters, read from the modules."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import nn

from harness.shapes import ModelShape

NOT_COMPARED = ("max_positions",)
"""torchtitan cuts the RoPE table to the run's sequence length, so a build does not show it."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A built model, on any device, the meta device included."""

    shape: ModelShape
    total_params: int
    """Every parameter once, however many modules share it."""
    active_params: int
    """Without the experts that one token is not routed to."""


def measure(model: nn.Module) -> Measured:
    """Read the shape from modules and weights (before sharding) rather than from the configuration they came from."""
    inner = getattr(model, "model", None)  # the Transformers backend wraps the class that Transformers would load
    shape = _native_shape(model) if inner is None else _transformers_shape(inner)
    total = sum(parameter.numel() for parameter in model.parameters())
    expert_params = 3 * shape.hidden * shape.moe_ffn * shape.num_experts * shape.num_layers
    unused = expert_params * (shape.num_experts - shape.top_k) // max(shape.num_experts, 1)
    return Measured(shape=shape, total_params=total, active_params=total - unused)


def differences(built: Measured, wanted: ModelShape) -> list[str]:
    """How a build differs from what was asked for, one line each, parameter counts included; empty if it does not."""
    lines = [
        f"{field.name} is {getattr(built.shape, field.name)}, expected {getattr(wanted, field.name)}"
        for field in dataclasses.fields(ModelShape)
        if field.name not in NOT_COMPARED and getattr(built.shape, field.name) != getattr(wanted, field.name)
    ]
    if built.total_params != wanted.num_params():
        lines.append(f"parameters are {built.total_params:,}, expected {wanted.num_params():,}")
    return lines


def refuse_other_model(model: nn.Module, wanted: ModelShape, path: str) -> Measured:
    """Return what was built; a ValueError names every difference from ``wanted``.

    This is the guard against a builder whose name or leftovers are not the model: torchtitan 0.3.0 has no 4B
    configuration function, and the one that the path starts from trains 32B.
    """
    built = measure(model)
    if lines := differences(built, wanted):
        raise ValueError(f"path {path} would train another model than it says: {'; '.join(lines)}")
    return built


def _native_shape(model: nn.Module) -> ModelShape:
    layers = list(model.layers.values())
    attention = layers[0].attention
    vocab, hidden = model.tok_embeddings.weight.shape
    moe = layers[0].moe if layers[0].moe_enabled else None
    experts = moe.routed_experts.inner_experts.w1_EFD if moe else None  # [experts, FFN, hidden]
    return ModelShape(
        num_layers=len(layers),
        hidden=hidden,
        num_heads=attention.n_heads,
        num_kv_heads=attention.n_kv_heads,
        head_dim=attention.head_dim,
        ffn=0 if moe else layers[0].feed_forward.w1.weight.shape[0],
        vocab=vocab,
        tied=model.tok_embeddings.weight is model.lm_head.weight,
        num_experts=experts.shape[0] if moe else 0,
        top_k=moe.router.top_k if moe else 0,
        moe_ffn=experts.shape[1] if moe else 0,
        rope_theta=attention.rope.config.theta,
        norm_eps=model.norm.eps,
    )


def _transformers_shape(model: nn.Module) -> ModelShape:
    decoder = model.model
    layers = list(decoder.layers.values()) if isinstance(decoder.layers, nn.ModuleDict) else list(decoder.layers)
    attention = layers[0].self_attn
    head_dim = attention.head_dim
    vocab, hidden = decoder.embed_tokens.weight.shape
    return ModelShape(
        num_layers=len(layers),
        hidden=hidden,
        num_heads=attention.q_proj.weight.shape[0] // head_dim,
        num_kv_heads=attention.k_proj.weight.shape[0] // head_dim,
        head_dim=head_dim,
        ffn=layers[0].mlp.gate_proj.weight.shape[0],
        vocab=vocab,
        tied=decoder.embed_tokens.weight is model.lm_head.weight,
        rope_theta=decoder.rotary_emb.config.rope_parameters["rope_theta"],
        norm_eps=decoder.norm.variance_epsilon,
    )
