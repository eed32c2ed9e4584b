"""What a submitted job runs, on each of its nodes: its pilots, one after the other, each a command of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from harness.meeting import INDEX

INTERRUPTED = (129, 130, 143)


def run_in_order(pilots: Sequence[Sequence[str]]) -> list[int]:
    """``python -m harness OVERRIDES`` for each pilot; returns the exit codes. A signal ends the rest too.

    The signal itself is Slurm's affair, which sends it to every process of the job; submitit ignores it here.

    Raises:
        SystemExit: not all pilots ended well; Slurm then calls the job failed.
    """
    os.environ.pop("HYDRA_FULL_ERROR", None)  # the submitting command sets it for itself
    codes: list[int] = []
    for index, overrides in enumerate(pilots):
        command = [sys.executable, "-m", "harness", *overrides]
        codes.append(subprocess.call(command, env=os.environ | {INDEX: str(index)}))
        if codes[-1] in INTERRUPTED or codes[-1] < 0:
            break
    if any(codes):
        sys.exit(1)
    return codes
