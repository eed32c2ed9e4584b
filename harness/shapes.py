"""The shape of a Qwen3 model and what follows from it by arithmetic alone (no torch).

Parameter counts here are computed from published configuration values, independently of any library, so that they can
be held against the model a library really builds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Widths and depths of a Qwen3 decoder; dense when ``num_experts`` is 0, else a mixture of experts per layer."""

    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    """Intermediate width of the dense SwiGLU feed-forward; unused (0) in a mixture of experts."""
    vocab: int
    tied: bool
    """Whether the output head shares the embedding's weight; a shared weight is counted once."""
    num_experts: int = 0
    top_k: int = 0
    moe_ffn: int = 0
    """Intermediate width of one expert."""
    rope_theta: float = 1e6
    norm_eps: float = 1e-6
    max_positions: int = 40960

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    def embedding_params(self) -> int:
        """Parameters of the token embedding (also those of the head when it is not tied)."""
        return self.vocab * self.hidden

    @property
    def attention_params(self) -> int:
        """Parameters of one layer's attention: q, k, v, o projections without bias, and the q and k norms."""
        q_width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return self.hidden * (2 * q_width + 2 * kv_width) + 2 * self.head_dim

    def feed_forward_params(self, *, active_only: bool = False) -> int:
        """Parameters of one layer's feed-forward; with ``active_only`` only the ``top_k`` experts a token visits."""
        if not self.is_moe:
            return 3 * self.hidden * self.ffn
        experts = self.top_k if active_only else self.num_experts
        return self.hidden * self.num_experts + experts * 3 * self.hidden * self.moe_ffn

    def num_params(self, *, active_only: bool = False) -> int:
        """Parameters of the model, a tied embedding counted once; the router counts as active."""
        layer = self.attention_params + self.feed_forward_params(active_only=active_only) + 2 * self.hidden
        embeddings = self.embedding_params * (1 if self.tied else 2)
        return self.num_layers * layer + embeddings + self.hidden
