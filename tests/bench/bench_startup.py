"""How long a person waits for an answer that needs no training, against an empty Python. Run: make bench."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ["-c", "pass"]
COMMANDS = {
    "--help": ["-m", "harness", "--help"],
    "a path that does not exist": ["-m", "harness", "+path=natve_4b"],
    "a key that does not exist": ["-m", "harness", "+path=native_4b", "train.stepz=3"],
    "harness.logs --help": ["-m", "harness.logs", "--help"],
    "harness.sync --help": ["-m", "harness.sync", "--help"],
    "analysis --help": ["-m", "analysis", "--help"],
    "kernels --help": ["-m", "kernels", "--help"],
}
ROUNDS = 7


def seconds(arguments: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True)
    return time.perf_counter() - begin


def main() -> None:
    print(f"{'command':<30} {'median s':>9} {'x python -c pass':>17}   (in pairs, {ROUNDS} rounds)")
    for name, arguments in COMMANDS.items():
        pairs = [(seconds(arguments), seconds(REFERENCE)) for _ in range(ROUNDS)]
        ratio = statistics.median(ours / reference for ours, reference in pairs)
        print(f"{name:<30} {statistics.median(ours for ours, _ in pairs):>9.3f} {ratio:>17.1f}")


if __name__ == "__main__":
    main()
