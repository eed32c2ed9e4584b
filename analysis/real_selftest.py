"""The self-test on real trainings: small rehearsals here, an arm with a planted sleep, and two identical arms.

The truth is known: the sleep costs 33.3 % of tokens/s (``harness.titan.planted_sleep``), the identical arms differ in
nothing. A machine may be too noisy to show the first; that is said, and is no success. A wrong verdict is a fault.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from analysis import wording
from analysis.comparison import Comparison, Request, compare
from analysis.numbers import between, change
from analysis.paired import EQUIVALENT, SLOWER, UNRESOLVED
from analysis.selection import Selector
from analysis.sources import from_directories

ROOT = Path(__file__).resolve().parent.parent
PLANTED = ("--override.imports", "harness.titan.planted_sleep.sleeps")
TRUE_CHANGE = 1 / 1.5 - 1
REPLICATES = 4
"""Even, so that a steady drift of the machine cancels."""
# Nothing compiles here, so that the simple rule for warm-up holds; the one that looks at the numbers would leave out
# runs of a machine that others use.
SMALL = (
    "+path=native_4b", "hydra/sweeper=interleaved", f"replicates={REPLICATES}", "platform=cpu", "platform.num_ranks=1",
    "scale.num_layers=4", "train.steps=40", "tracking=off", "sampling.enabled=false", "export.enabled=false",
    "phases=skip_first", "phases.skip=5",
)  # fmt: skip
RIGHT, WRONG, TOO_NOISY = 0, 1, 3
"""Exit codes; 3: nothing wrong was said, but the machine is too noisy for the planted sleep to be shown."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Two arms of real runs whose difference is known."""

    text: str
    experiment: str
    flags: tuple[tuple[str, ...], tuple[str, ...]]
    """``train.flags`` of both arms."""
    right: tuple[str, ...]
    tolerated: tuple[str, ...] = ()
    """Verdicts that show nothing and claim nothing."""

    @property
    def request(self) -> Request:
        baseline, candidate = (
            Selector((("experiment", self.experiment), ("train.flags", str(list(flags))))) for flags in self.flags
        )
        return Request(baseline=baseline, candidate=candidate)

    @property
    def swept(self) -> str:
        return "train.flags=" + ",".join(f"[{','.join(flags)}]" for flags in self.flags)


TRUTHS = (
    Truth(text="A/A: identical arms", experiment="aa", flags=((), ()), right=(EQUIVALENT, UNRESOLVED)),
    Truth(
        text="a sleep of half a step after each step of the candidate",
        experiment="planted_sleep",
        flags=((), PLANTED),
        right=(SLOWER,),
        tolerated=(UNRESOLVED,),
    ),
)


def judge(truth: Truth, comparison: Comparison) -> int:
    """``RIGHT``, ``WRONG`` or ``TOO_NOISY``: the verdict against the truth."""
    effect = comparison.effect("throughput")
    if comparison.verdict in truth.right and effect is not None:
        return RIGHT
    return TOO_NOISY if comparison.verdict in truth.tolerated else WRONG


def told(comparison: Comparison) -> str:
    """The verdict on throughput in one line."""
    effect = comparison.effect("throughput")
    if effect is None:
        return wording.verdict(comparison)
    interval = f"95 % interval {between(effect)}, {effect.pairs} pairs"
    reason = f": {effect.reason}" if effect.reason else ""
    return f"{comparison.verdict} ({change(effect.ratio)} steady tokens/s, {interval}){reason}"


def run() -> int:
    """Train, compare, tell; the runs are kept where a verdict is not right."""
    folder = Path(tempfile.mkdtemp(prefix="selftest-"))
    started = time.monotonic()
    codes = []
    for truth in TRUTHS:
        print(f"{truth.text}: {2 * REPLICATES} trainings ...", flush=True)
        _train(truth, folder)
        comparison = compare(from_directories(folder), truth.request)
        codes.append(judge(truth, comparison))
        words = {RIGHT: "right", WRONG: "WRONG", TOO_NOISY: "not shown: this machine is too noisy"}
        print(f"  {words[codes[-1]]}: {told(comparison)}", flush=True)
    code = WRONG if WRONG in codes else max(codes)
    print(f"{time.monotonic() - started:.0f} s; the sleep is worth {100 * TRUE_CHANGE:.1f} % of tokens/s")
    if code == RIGHT:
        shutil.rmtree(folder)
    else:
        print(f"runs: {folder}")
    return code


def _train(truth: Truth, folder: Path) -> None:
    """Run the sweep. Raises ValueError where it does not get through."""
    command = [sys.executable, "-m", "harness", "-m", *SMALL, truth.swept]
    command += [f"experiment_name={truth.experiment}", f"runs={folder}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise ValueError(f"the trainings of the self-test failed: {''.join(last)[:300]} (runs: {folder})")
