"""FLOPs per token under one named convention, MFU, and why it differs from the MFU that a log prints.

The convention, ``active-matmul/full-attention`` (that of torchtitan's native models, so that a native run's printed MFU
can be held against ours), per token of training, forward and backward:

    6 x P  +  12 x layers x heads x head_dim x sequence length

* P: every parameter that a token visits: of a mixture of experts the router and the ``top_k`` experts only. The
  embedding look-up multiplies nothing and is not counted; the output head does and is counted once, tied or not. The
  few norm weights are counted as if they were matrices (0.005 % of Qwen3-4B).
* Attention: scores and values are two products of width head_dim per head forward, twice that backward, 2 FLOPs each.
  The whole square counts: causal or document masks are not discounted, so that no kernel changes the convention.
* Recomputation (activation checkpointing, flash attention) is not counted: this is model FLOPs, not hardware FLOPs.

torchtitan 0.3.0 uses this for native models; its Transformers backend passes head_dim where 2 x head_dim is meant (half
of the attention term), counts all experts and leaves out a tied head. ``transformers_backend_flops`` computes that, to
explain the ratio: 0.81 for Qwen3-4B at 4096 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.peaks import explain_denominator
from harness.shapes import ModelShape

CONVENTION = "active-matmul/full-attention"

SAME = 0.01
"""Two MFU within this relative distance are the same number: logs print two decimals."""


@dataclass(frozen=True, kw_only=True)
class FlopsPerToken:
    """Training FLOPs of one token, by term."""

    matmul: int
    attention: int

    @property
    def total(self) -> int:
        return self.matmul + self.attention


def flops_per_token(shape: ModelShape, seq_len: int) -> FlopsPerToken:
    """FLOPs of one token, forward and backward, in sequences of ``seq_len`` tokens (see the module's convention)."""
    if seq_len < 1:
        raise ValueError(f"the sequence length is {seq_len}; expected a number of tokens above 0")
    embeddings = shape.embedding_params * (0 if shape.tied else 1)
    return FlopsPerToken(
        matmul=6 * (shape.num_params(active_only=True) - embeddings),
        attention=12 * shape.num_layers * shape.num_heads * shape.head_dim * seq_len,
    )


def transformers_backend_flops(shape: ModelShape, seq_len: int, *, embedding_counted: bool = False) -> FlopsPerToken:
    """What torchtitan 0.3.0's Transformers backend takes for FLOPs per token: all experts, half of the attention term.

    It also takes the embedding away, with a tied one the head (seen for Qwen3-4B with transformers 5.16, tests/
    test_flops.py); ``embedding_counted`` is for versions that do not (pytorch/torchtitan pull request 4300).
    """
    embedding = 0 if embedding_counted else shape.embedding_params
    return FlopsPerToken(
        matmul=6 * (shape.num_params() - embedding),
        attention=6 * shape.num_layers * shape.num_heads * shape.head_dim * seq_len,
    )


@dataclass(frozen=True, kw_only=True)
class Mfu:
    """Model FLOPs utilisation in percent, or None and the reason."""

    percent: float | None
    reason: str = ""


def mfu(tps_per_rank: float | None, flops: float | None, peak: float | None, *, missing: str = "") -> Mfu:
    """100 x tokens/s of one rank x FLOPs per token / peak FLOP/s of that rank's device.

    Without one of the three there is none, with ``missing`` as the reason. More than 100 % is refused with the inputs.
    """
    if not tps_per_rank or not flops or not peak:
        return Mfu(percent=None, reason=missing or "an input is missing")
    percent = 100.0 * tps_per_rank * flops / peak
    if percent > 100.0:
        return Mfu(
            percent=None,
            reason=f"refused: {percent:.1f} % from {tps_per_rank:.6g} tokens/s per rank x {flops:.6g} FLOPs per token"
            f" / {peak:.6g} FLOP/s peak; one of the three is wrong",
        )
    return Mfu(percent=percent)


@dataclass(frozen=True, kw_only=True)
class Reported:
    """What a log printed: MFU in percent, and the FLOPs per token and the peak behind it as far as the log tells."""

    mfu: float
    flops: float | None = None
    """tflops / tps of the same line, FLOPs per token."""
    peak: float | None = None
    """FLOP/s: the log's own line, or tflops / mfu."""


def explain_ratio(
    ours: float, reported: Reported, *, flops: float, peak: float, shape: ModelShape | None, seq_len: int | None
) -> str:
    """Why the printed MFU is not ours: the two factors of the ratio printed / ours, each with its cause if it is known.

    ``ours``: percent; ``flops`` per token and ``peak`` FLOP/s behind it. Empty where the two agree.
    """
    if abs(reported.mfu / ours - 1) <= SAME:
        return ""
    parts = [f"printed {reported.mfu:.2f} % is {reported.mfu / ours:.3f} x ours"]
    if reported.flops and abs(reported.flops / flops - 1) > SAME:
        cause = _flops_cause(reported.flops, shape, seq_len)
        parts.append(
            f"FLOPs per token {reported.flops:.4g} against {flops:.4g} ({reported.flops / flops:.3f} x{cause})"
        )
    if reported.peak and abs(reported.peak / peak - 1) > SAME:
        cause = explain_denominator(reported.peak)
        parts.append(f"peak {reported.peak:.4g} against {peak:.4g}" + (f" ({cause})" if cause else ""))
    if len(parts) == 1:
        parts.append("the log does not tell which of its inputs differs")
    return "; ".join(parts)


def _flops_cause(flops: float, shape: ModelShape | None, seq_len: int | None) -> str:
    if shape is None or seq_len is None:
        return ""
    for counted, head in ((False, ", no embedding or tied head"), (True, "")):
        other = transformers_backend_flops(shape, seq_len, embedding_counted=counted).total
        if abs(flops / other - 1) <= SAME:
            return f": torchtitan's Transformers backend counts half of the attention term, all experts{head}"
    return ""
