"""Faults planted in a real training by torchtitan's own overrides: ``--override.imports tests.faults.plants.X``."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torchtitan.config.override import derive, override
from torchtitan.models.common import CosSinRoPE

LAYER_0 = ["*layers.0.attention.rope"]
NAN_AT_STEP = 4


class NanRoPE(CosSinRoPE):
    """The library's own, but its output is NaN in one step; called once a step where there is one micro batch."""

    @dataclass(kw_only=True, slots=True)
    class Config(CosSinRoPE.Config):
        pass

    calls = 0

    def forward(self, *args, **kwargs):
        NanRoPE.calls += 1
        out = super().forward(*args, **kwargs)
        if NanRoPE.calls != NAN_AT_STEP:
            return out
        return tuple(part * float("nan") for part in out) if isinstance(out, tuple) else out * float("nan")


@override(target=CosSinRoPE.Config, fqns=LAYER_0, description="NaN in one step")
def nan_rope(config: CosSinRoPE.Config) -> CosSinRoPE.Config:
    return derive(config, NanRoPE.Config)


class TalkingRoPE(CosSinRoPE):
    """The library's own, but what PLANT_TEXT holds is printed in the first step: on both streams, by every rank."""

    @dataclass(kw_only=True, slots=True)
    class Config(CosSinRoPE.Config):
        pass

    said = False

    def forward(self, *args, **kwargs):
        if not TalkingRoPE.said:
            TalkingRoPE.said = True
            text = Path(os.environ["PLANT_TEXT"]).read_text()
            print(text, flush=True)
            print(text, file=sys.stderr, flush=True)
        return super().forward(*args, **kwargs)


@override(target=CosSinRoPE.Config, fqns=LAYER_0, description="prints a text")
def talking_rope(config: CosSinRoPE.Config) -> CosSinRoPE.Config:
    return derive(config, TalkingRoPE.Config)


class GreedyRoPE(CosSinRoPE):
    """The library's own, but it asks for 64 TiB of memory first."""

    @dataclass(kw_only=True, slots=True)
    class Config(CosSinRoPE.Config):
        pass

    def forward(self, *args, **kwargs):
        torch.empty(1 << 46, dtype=torch.uint8)
        return super().forward(*args, **kwargs)


@override(target=CosSinRoPE.Config, fqns=LAYER_0, description="asks for too much memory")
def greedy_rope(config: CosSinRoPE.Config) -> CosSinRoPE.Config:
    return derive(config, GreedyRoPE.Config)


class FailingRoPE(CosSinRoPE):
    """The library's own, but the third step raises the error whose text PLANT_ERROR holds, on rank 1."""

    @dataclass(kw_only=True, slots=True)
    class Config(CosSinRoPE.Config):
        pass

    calls = 0

    def forward(self, *args, **kwargs):
        FailingRoPE.calls += 1
        if FailingRoPE.calls == 3 and os.environ["RANK"] == "1":
            raise RuntimeError(os.environ["PLANT_ERROR"])
        return super().forward(*args, **kwargs)


@override(target=CosSinRoPE.Config, fqns=LAYER_0, description="fails in the third step of rank 1")
def failing_rope(config: CosSinRoPE.Config) -> CosSinRoPE.Config:
    return derive(config, FailingRoPE.Config)
