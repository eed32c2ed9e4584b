"""Run directories with a known truth, for the self-test, the tests and the benchmarks. They never claim to be measured:
platform and host are called ``synthetic``.

Only step times, losses and circumstances are made up; phases and summary are computed from them by the harness, so that
a truth has to find its way through the whole chain.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import rundir
from harness.logs import Row
from harness.phases import PhasesConfig
from harness.rundir import RunDir, Status
from harness.summary import RunFacts, summarize

RANKS, SEQ_LEN, GLOBAL_BATCH = 64, 4096, 64
STEP_S = 0.5
START = datetime(2026, 10, 20, 8, 0, tzinfo=UTC)

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How a machine disturbs measurements; all relative to a step."""

    run_sd: float = 0.005
    """Offset that all steps of a run share."""
    step_sd: float = 0.005
    correlation: float = 0.5
    """Of neighbouring steps."""
    drift: float = 0.01
    """Change of the machine over the whole sweep."""


@dataclass(kw_only=True)
class SyntheticRun:
    """One run before it is written; faults are planted by changing it."""

    run_id: str
    config: dict[str, Any]
    manifest: dict[str, Any]
    step_s: Floats
    """Seconds of each step, shape (steps,)."""
    loss: Floats
    grad_norm: Floats
    started: datetime
    memory_gib: float = 14.0
    steps_logged: Sequence[int] | None = None
    """None: all."""
    checks: list[dict[str, Any]] = field(default_factory=list)
    state: str = rundir.FINISHED
    reason: str = ""

    def rows(self) -> list[Row]:
        """What the log of this run would give."""
        tokens_per_rank = self._tokens_per_step / RANKS
        ends = self.started + np.cumsum([timedelta(seconds=float(seconds)) for seconds in self.step_s])
        logged = range(1, len(self.step_s) + 1) if self.steps_logged is None else self.steps_logged
        return [
            Row(
                kind="train",
                segment=0,
                step=step,
                loss=round(float(self.loss[step - 1]), 5),
                grad_norm=round(float(self.grad_norm[step - 1]), 4),
                memory_gib=self.memory_gib,
                memory_pct=round(100 * self.memory_gib / 96, 2),
                tps=round(tokens_per_rank / float(self.step_s[step - 1])),
                rank=0,
                time=ends[step - 1].replace(tzinfo=None).isoformat(timespec="milliseconds"),
                line=step,
            )
            for step in logged
        ]

    @property
    def _tokens_per_step(self) -> int:
        train = self.config["train"]
        return train["seq_len"] * train["global_batch_size"]

    def write(self, root: Path) -> RunDir:
        """Write the run directory ``root/<experiment>/<run id>``."""
        import yaml

        directory = RunDir(root / self.config["experiment_name"] / self.run_id)
        directory.path.mkdir(parents=True)
        rows = self.rows()
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        directory.file(rundir.CONFIG).write_text(yaml.dump(self.config, Dumper=dumper, sort_keys=False))
        _write_json(directory, rundir.MANIFEST, self.manifest)
        stream = rundir.JsonLines(directory.file(rundir.ROWS))
        stream.append(*(row.to_json() for row in rows))
        stream.close()
        wall_s = float(self.step_s.sum()) + 30.0
        facts = RunFacts(
            phases=PhasesConfig(),
            ranks=RANKS,
            chips=16,
            tokens_per_step=self._tokens_per_step,
            wall_s=wall_s,
            price_per_hour=self.config["platform"]["price_per_hour"],
            rehearsal=self.config["rehearsal"],
        )
        _write_json(directory, rundir.SUMMARY, summarize(rows, (), facts))
        _write_json(directory, rundir.CHECKS, self.checks)
        ended = self.started + timedelta(seconds=wall_s)
        status = Status(
            state=self.state,
            reason=self.reason,
            started=self.started.isoformat(timespec="milliseconds"),
            ended=ended.isoformat(timespec="milliseconds"),
        )
        _write_json(directory, rundir.STATUS, status)
        return directory


def _write_json(directory: RunDir, name: str, value: Any) -> None:
    """Without the care that a real run deserves: thousands of these are written, and none is missed."""
    directory.file(name).write_text(json.dumps(rundir.to_jsonable(value), indent=1))


def make_sweep(
    *,
    pairs: int = 8,
    effect: float = 0.0,
    steps: int = 40,
    seed: int = 0,
    machine: Machine = Machine(),
    experiment: str = "synthetic",
    kernels: tuple[str, str] = ("baseline", "nki_rope"),
    order: str = "abba",
) -> list[SyntheticRun]:
    """A sweep of two arms in the order in which it ran.

    Args:
        effect: relative gain of the candidate's tokens/s: 0.02 is 2 % faster.
        order: ``abba``, ``abab`` or ``blocked``.
    """
    random = np.random.default_rng(seed)
    runs = []
    sequence = arm_order(pairs, order)
    for place, (block, arm) in enumerate(sequence):
        offset = random.normal(0, machine.run_sd) + machine.drift * place / max(1, len(sequence) - 1)
        times = STEP_S * (1 + offset + _noise(random, steps, machine))
        times[0] += 20.0 + random.normal(0, 0.5)
        if arm:
            times /= 1 + effect
        runs.append(_run(experiment, kernels[arm], block, place, times, random))
    return runs


def arm_order(pairs: int, order: str) -> list[tuple[int, int]]:
    """(block, arm) of each run in the order of the sweep; arm 0 is the baseline."""
    if order == "blocked":
        return [(block, arm) for arm in (0, 1) for block in range(pairs)]
    assert order in ("abba", "abab")
    return [(block, arm) for block in range(pairs) for arm in ((0, 1) if order == "abab" or block % 2 == 0 else (1, 0))]


def write_sweep(runs: Sequence[SyntheticRun], root: Path) -> list[RunDir]:
    """Write all runs below ``root``."""
    return [run.write(root) for run in runs]


def _noise(random: np.random.Generator, steps: int, machine: Machine) -> Floats:
    """Autocorrelated step noise (AR(1)) of standard deviation ``step_sd``, shape (steps,)."""
    innovations = random.normal(0, machine.step_sd, steps)
    innovations[1:] *= np.sqrt(1 - machine.correlation**2)
    noise = innovations.copy()
    for step in range(1, steps):
        noise[step] += machine.correlation * noise[step - 1]
    return noise


def _run(
    experiment: str, kernel: str, block: int, place: int, step_s: Floats, random: np.random.Generator
) -> SyntheticRun:
    steps = np.arange(1, len(step_s) + 1)
    learning = 12.4 * (0.45 + 0.55 * np.exp(-steps / 15)) + 0.15 * np.sin(steps * 1.7)
    config = copy.deepcopy(CONFIG)
    config["kernel"]["name"] = kernel
    config["train"]["steps"] = len(step_s)
    config |= {"experiment_name": experiment, "replicate": block, "block": block, "order": place}
    return SyntheticRun(
        run_id=f"{experiment}-{place:04d}-{kernel}",
        config=config,
        manifest=copy.deepcopy(MANIFEST) | {"sweep": experiment, "config_hash": f"{abs(hash(kernel)):x}"[:16]},
        step_s=step_s,
        # Rounding differs between kernels, and with non-deterministic reductions between runs of one kernel.
        loss=learning * (1 + random.normal(0, 2e-6, len(step_s))),
        grad_norm=(0.8 + 2.2 * np.exp(-steps / 8)) * (1 + random.normal(0, 2e-4, len(step_s))),
        started=START + timedelta(seconds=90 * place),
        checks=[
            {"name": name, "verdict": "pass", "evidence": evidence, "value": None}
            for name, evidence in (("completed", "exit code 0"), ("kernel_executed", "36 of 36 layers"))
        ],
    )


CONFIG: dict[str, Any] = {
    "path": {"name": "native_4b", "backend": "native", "builder": "qwen3_32b"},
    "platform": {
        "name": "synthetic",
        "device": "none",
        "num_ranks": RANKS,
        "lnc": 2,
        "num_chips": 16,
        "chip": "",
        "peak_flops_per_rank": None,
        "price_per_hour": 20.0,
        "price_date": None,
        "env": {},
        "device_flags": [],
    },
    "kernel": {"name": "baseline", "overrides": [], "backend": "auto", "layers": "*", "gate": True},
    "init": {"mode": "random", "path": None},
    "data": {"name": "c4_test", "kind": "c4_test", "path": None, "text_field": "text"},
    "phases": {"rule": "settle"},
    "scale": {"rehearsal": None, "num_layers": None},
    "train": {
        "steps": 40,
        "seq_len": SEQ_LEN,
        "local_batch_size": 1,
        "global_batch_size": GLOBAL_BATCH,
        "learning_rate": 3e-4,
        "warmup_steps": 2,
        "dtype": "bfloat16",
        "seed": 1,
        "compile": False,
        "log_freq": 1,
    },
    "experiment_name": "synthetic",
    "replicate": 0,
    "block": None,
    "order": None,
    "rehearsal": False,
}
MANIFEST: dict[str, Any] = {
    "versions": {"python": "3.11.7", "torch": "2.14.0", "torchtitan": "0.3.0", "transformers": "5.16.0"},
    "git": {"commit": "0" * 40, "dirty": False, "changes": "none"},
    "hardware": {"hostname": "synthetic", "cpu": "synthetic", "device": "none", "cpu_count": 192},
    "environment": {"OMP_NUM_THREADS": "2"},
    "shape": {"num_layers": 36, "hidden": 2560},
}
