"""What the harness costs: pilots against bare torchrun with the same arguments and environment, in ABBA pairs.

Printed: wall seconds of both, the fixed cost, and the steady step time of both as a ratio. Run: make bench.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.logs import LogReader, Row
from harness.rundir import find_runs

ROOT = Path(__file__).resolve().parents[2]
PAIRS, STEPS, SKIP = 5, 300, 10
PILOT = ["+path=native_4b", "platform.num_ranks=1", f"train.steps={STEPS}", "scale.num_layers=4"]
ENV = os.environ | {"OMP_NUM_THREADS": "1"}


def step_seconds(rows: list[Row], tokens: int) -> float:
    return statistics.median(tokens / row.tps for row in rows[SKIP:] if row.tps)


def pilot(runs: Path, *arguments: str) -> tuple[float, float, Path]:
    """Wall seconds, steady seconds per step, and the run directory."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "harness", *PILOT, f"runs={runs}", *arguments]
    subprocess.run(command, cwd=ROOT, env=ENV, check=True, capture_output=True)
    wall = time.perf_counter() - begin
    run = find_runs(runs)[-1]
    tokens = json.loads(run.file("titan.json").read_text())
    rows = [Row.from_json(row) for row in run.rows()]
    return wall, step_seconds(rows, tokens["seq_len"] * tokens["local_batch_size"]), run.path


def bare(run: Path) -> tuple[float, float]:
    """The same command and environment as the pilot in ``run``, without the harness."""
    manifest = json.loads((run / "manifest.json").read_text())
    spec = json.loads((run / "titan.json").read_text())
    env = ENV | manifest["environment"] | {"PILOT_SPEC": str(run / "titan.json")}
    begin = time.perf_counter()
    done = subprocess.run(manifest["command"], cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)  # fmt: skip
    wall = time.perf_counter() - begin
    reader = LogReader()
    rows = [record for record in [*reader.feed(done.stdout), *reader.close()] if isinstance(record, Row)]
    return wall, step_seconds(rows, spec["seq_len"] * spec["local_batch_size"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        _, _, first = pilot(runs)  # makes caches and the database
        print(
            f"{'pair':<6}{'pilot s':>9}{'bare s':>9}{'fixed s':>9}{'pilot step ms':>15}{'bare step ms':>14}{'ratio':>8}"
        )
        ratios, fixed = [], []
        for pair in range(PAIRS):
            if pair % 2:  # ABBA: the drift of the machine cancels
                reference, ours = bare(first), pilot(runs)
            else:
                ours, reference = pilot(runs), bare(first)
            ratios.append(ours[1] / reference[1])
            fixed.append(ours[0] - reference[0])
            print(f"{pair:<6}{ours[0]:>9.1f}{reference[0]:>9.1f}{fixed[-1]:>9.1f}{1e3 * ours[1]:>15.1f}"
                  f"{1e3 * reference[1]:>14.1f}{ratios[-1]:>8.3f}")  # fmt: skip
        print(
            f"median: {100 * (statistics.median(ratios) - 1):+.1f} % per step, {statistics.median(fixed):.1f} s fixed"
        )


if __name__ == "__main__":
    main()
