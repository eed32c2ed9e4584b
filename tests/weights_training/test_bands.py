"""The band of the first loss is arithmetic of shape and initialisation, and holds what was measured (no torch)."""

from __future__ import annotations

import dataclasses
import math

import pytest

from harness.first_loss import Band, pretrained_band, random_band
from harness.paths import load_path


def band(name: str, **changes: int) -> Band:
    shape = dataclasses.replace(load_path(name).rehearsal_shape(), **changes)
    return random_band(shape, transformers=name == "hf_4b")


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "ffn", "measured"),
    [  # first steps of torchtitan 0.3.0 on 512 tokens
        ("native_4b", 2, 64, 160, (7.62609, 7.63405)),
        ("native_4b", 36, 64, 160, (7.64377,)),
        ("native_4b", 4, 256, 640, (7.69271,)),
        ("native_4b", 4, 768, 2048, (7.80308,)),
        ("hf_4b", 2, 64, 160, (8.80004, 8.68538)),
        ("hf_4b", 36, 64, 160, (8.78963,)),
        ("hf_4b", 4, 256, 640, (14.9621,)),
        ("hf_4b", 4, 768, 2048, (9.99857,)),
        ("moe_nki", 2, 64, 0, (7.62578, 7.64011)),
        ("moe_nki", 4, 64, 0, (7.63266,)),
    ],
)
def test_measured_losses_lie_in_the_computed_band(
    name: str, layers: int, hidden: int, ffn: int, measured: tuple[float, ...]
) -> None:
    found = band(name, num_layers=layers, hidden=hidden, ffn=ffn)
    assert all(loss in found for loss in measured)
    assert math.log(2048) - 0.5 not in found  # knows more than nothing
    assert 25.0 not in found  # the head many times too large


@pytest.mark.parametrize(("name", "low", "high"), [("native_4b", 12.24, 12.65), ("hf_4b", 12.23, 12.70)])
def test_at_full_scale_the_guide_s_random_loss_is_in_a_narrow_band_and_its_pretrained_one_is_not(
    name: str, low: float, high: float
) -> None:
    shape = load_path(name).full_shape()
    found = random_band(shape, transformers=name == "hf_4b")
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.01)
    assert 12.43 in found
    assert 6.54 not in found
    assert 6.54 in pretrained_band(shape)
    assert 12.43 not in pretrained_band(shape)


def test_another_vocabulary_is_another_band_and_a_nan_is_in_none() -> None:
    assert 7.64 in band("native_4b")
    assert 7.64 not in band("native_4b", vocab=4096)
    assert math.nan not in band("native_4b")
    assert math.nan not in pretrained_band(load_path("native_4b").full_shape())


def test_the_reason_names_the_numbers() -> None:
    assert band("native_4b").why == "random: ln(2,048) = 7.62 + 0.01 for the logits' variance"
    assert "up to 8.76 with the token's own logit in a tied head" in band("hf_4b").why
