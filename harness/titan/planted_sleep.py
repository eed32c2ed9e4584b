"""A known slowdown for ``python -m analysis selftest --real``: a torchtitan override that changes nothing of the model
and sleeps after each optimizer step. Named in ``train.flags``, so that a run that has it says so."""

from __future__ import annotations

import statistics
import time

from torch.optim.optimizer import register_optimizer_step_post_hook
from torchtitan.config.override import override
from torchtitan.models.common import Embedding

SHARE = 0.5
"""Of a step: tokens/s must fall by 1 - 1 / 1.5 = 33.3 %. A tenth of a step is less than two shared cores can show."""
FIRST_STEPS = 3
"""Looked at before the first sleep: the very first compiles and allocates."""


class Sleeper:
    """Sleeps for ``SHARE`` of the median time between the end of its last sleep and now, which is a step without it."""

    def __init__(self) -> None:
        self.optimizer: object = None
        self.steps: list[float] = []
        self.ended: float | None = None

    def __call__(self, optimizer: object, *_: object) -> None:
        # torchtitan's container of optimizers is one itself: its step, right after that of its member, is not another.
        self.optimizer = self.optimizer or optimizer
        if optimizer is not self.optimizer:
            return
        now = time.perf_counter()
        if self.ended is not None:
            self.steps.append(now - self.ended)
        if len(self.steps) >= FIRST_STEPS:
            time.sleep(SHARE * statistics.median(self.steps))
        self.ended = time.perf_counter()


@override(target=Embedding.Config, description="changes nothing; sleeps after each optimizer step")
def sleeps(config: Embedding.Config) -> Embedding.Config:
    """The configuration itself; from now on every optimizer step of this process ends in a sleep."""
    register_optimizer_step_post_hook(Sleeper())
    return config
