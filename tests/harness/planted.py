"""torchtitan overrides that plant a fault into a real training, for tests: ``train.flags=[--override.imports,...]``."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torchtitan.config.override import derive, override
from torchtitan.models.common import CosSinRoPE, Embedding

SLEEP_S = 3.0
SLOW_STEP = 16


class SleepingRoPE(CosSinRoPE):
    """The library's RoPE, which sleeps in one step: it is called once per layer and step, here in layer 0 only."""

    @dataclass(kw_only=True, slots=True)
    class Config(CosSinRoPE.Config):
        pass

    calls = 0

    def forward(self, query: torch.Tensor, key: torch.Tensor, *args: object, **kwargs: object):
        SleepingRoPE.calls += 1
        if SleepingRoPE.calls == SLOW_STEP:
            time.sleep(SLEEP_S)
        return super().forward(query, key, *args, **kwargs)


@override(target=CosSinRoPE.Config, fqns=["*layers.0.attention.rope"], description="sleeps in one step")
def sleeps(config: CosSinRoPE.Config) -> CosSinRoPE.Config:
    return derive(config, SleepingRoPE.Config)


@override(target=Embedding.Config, description="changes nothing; its import plants a fallback in the RoPE op")
def falls_back(config: Embedding.Config) -> Embedding.Config:
    """From now on the op gives the reference's result without a word: right numbers, no kernel."""
    from kernels.rope import launch, reference

    def fallback(direction: str, query: torch.Tensor, key: torch.Tensor, cache: torch.Tensor):
        rotate = reference.rotate if direction == "forward" else reference.rotate_back
        return rotate(query, cache).contiguous(), rotate(key, cache).contiguous()

    launch._run = fallback
    return config
