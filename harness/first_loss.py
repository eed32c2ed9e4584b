"""What the loss of the first step should be: of random weights from the vocabulary and the initialisation, of
published weights clearly below (no torch).

**Random weights.** The last norm makes the hidden state h a vector of length sqrt(hidden). With head weights of
standard deviation s, logits are normal with variance ``v = hidden s^2``, and know nothing of the label, whose logit is
0 on average: the expected loss is that of normal logits, ``ln(vocab) + v / 2``. So it lies *above* ln(vocab), by 0.01
at the rehearsal's narrow native widths and by 0.5 at those of Qwen3-4B, where the guide saw 12.43 (12.44 computed).

**Tied head.** Where the head is the embedding, h still contains the embedding of the token it stands at, so that this
token gets a logit of its own, up to ``own = hidden s``, and with it a share of the probability that is lost for the
label: ``ln(vocab e^(v / 2) + e^own)``. The layers add to the residual stream and so dilute it: with r^2 the variance
that they add, ``own = hidden s^2 / sqrt(s^2 + r^2)``. Of r^2 the feed-forwards' part is computed (their inputs are
normed: ``layers ffn var(silu(g) u) s_down^2``); attention's comes on top, so that the upper end is a little high. The
Transformers backend initialises with ``s = hidden^-0.5``: at the rehearsal's hidden 64 that gives own = 8 and a loss of
8.76 instead of 8.12. Measured on a batch of 512 tokens, in brackets the ends computed: native 7.64 (7.64), hidden 768
7.80 (7.78); Transformers backend 8.69 to 8.80 (8.12, 8.76), hidden 256 14.96 (8.12, 15.81), hidden 768 10.0 (8.12,
19.0).

The band spans from where nothing of the own embedding is left to that upper end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.shapes import ModelShape

NATIVE_STD = 0.02
"""torchtitan 0.3.0, models/qwen3: every linear layer, the head and with it a tied embedding."""
SLACK = 0.2
"""Of one batch: the label's mean logit is 0 only on average. Up to 0.07 was seen with 512 tokens at hidden 64."""
CLEARLY_BELOW = 1.0
"""Published weights are at least this far below ln(vocab), nats. Qwen3-4B on English text is 8 below."""


@dataclass(frozen=True)
class Band:
    """Where the first loss should lie; ``why`` says it to a person."""

    low: float
    high: float
    why: str

    def __contains__(self, loss: float) -> bool:
        return self.low <= loss <= self.high


def head_std(shape: ModelShape, *, transformers: bool) -> float:
    """Standard deviation of the head's initial weights.

    Args:
        transformers: whether torchtitan's Transformers backend initialises (hidden ** -0.5, cut off at three of them).
    """
    return shape.hidden**-0.5 if transformers else NATIVE_STD


def random_band(shape: ModelShape, *, transformers: bool) -> Band:
    """The band for fresh weights; see the module."""
    std = head_std(shape, transformers=transformers)
    variance = shape.hidden * std**2
    base = math.log(shape.vocab) + variance / 2
    high = base
    why = f"random: ln({shape.vocab:,}) = {math.log(shape.vocab):.2f} + {variance / 2:.2f} for the logits' variance"
    if shape.tied:
        added = feed_forward_variance(shape, transformers=transformers)
        high = _log_sum(base, shape.hidden * std**2 / math.sqrt(std**2 + added))
        why += f", up to {high:.2f} with the token's own logit in a tied head" if high - base > SLACK else ""
    return Band(base - SLACK, high + SLACK, why)


def pretrained_band(shape: ModelShape) -> Band:
    """The band for trained weights: clearly below what knowing nothing costs."""
    high = math.log(shape.vocab) - CLEARLY_BELOW
    return Band(0.0, high, f"pretrained: clearly below ln({shape.vocab:,}) = {math.log(shape.vocab):.2f}")


def feed_forward_variance(shape: ModelShape, *, transformers: bool) -> float:
    """Variance that the feed-forwards of all layers add to one element of the residual stream, with fresh weights.

    torchtitan 0.3.0: natively all three matrices have 0.02; its Transformers backend divides those of up and down by
    sqrt(2 layers).
    """
    std = NATIVE_STD / math.sqrt(2 * shape.num_layers) if transformers else NATIVE_STD
    gate, up = shape.hidden * NATIVE_STD**2, shape.hidden * std**2
    return shape.num_layers * shape.ffn * _mean_square_of_silu(gate) * up * std**2


def _mean_square_of_silu(variance: float) -> float:
    """E[silu(g)^2] for a normal g, by the trapezoidal rule over six standard deviations."""
    std, step, total = math.sqrt(variance), 0.05, 0.0
    for number in range(-120, 121):
        x = number * step
        density = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        total += step * density * (std * x / (1 + math.exp(-std * x))) ** 2
    return total


def _log_sum(left: float, right: float) -> float:
    """ln(e^left + e^right)."""
    larger = max(left, right)
    return larger + math.log1p(math.exp(min(left, right) - larger))
