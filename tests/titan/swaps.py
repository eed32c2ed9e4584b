"""Overrides for tests: one that changes nothing, one that fails on one rank, one that aborts at exit."""

from __future__ import annotations

import atexit
import os
from dataclasses import dataclass

from torchtitan.config.override import derive, override
from torchtitan.models.common import CosSinRoPE


class SameRoPE(CosSinRoPE):
    @dataclass(kw_only=True, slots=True)
    class Config(CosSinRoPE.Config):
        pass


@override(target=CosSinRoPE.Config, description="the library's own RoPE under another name")
def same_rope(config: CosSinRoPE.Config) -> CosSinRoPE.Config:
    return derive(config, SameRoPE.Config)


@override(target=CosSinRoPE.Config, description="fails on rank 1 only")
def fails_on_rank_one(config: CosSinRoPE.Config) -> CosSinRoPE.Config:
    if os.environ["RANK"] == "1":
        raise ValueError("planted on rank 1")
    return derive(config, SameRoPE.Config)


@override(target=CosSinRoPE.Config, fqns=["*layers.0.attention.rope"], description="aborts while Python winds up")
def aborts_at_exit(config: CosSinRoPE.Config) -> CosSinRoPE.Config:
    atexit.register(os.abort)
    return derive(config, SameRoPE.Config)
