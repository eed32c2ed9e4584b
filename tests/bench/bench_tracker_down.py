"""How much longer a pilot takes when its tracking server is down, against the same pilot with tracking off.

The stand-in trainer takes 4 s, so that the tracker is up before the end. Five rounds of off, refused (nobody listens)
and deaf (accepts and never answers), in turns; medians of the wall time. The goal is at most 2 s more.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.faults.pilots import standin, start_pilot
from tests.faults.servers import Deaf, free_port

ROUNDS = 5


def seconds(root: Path, name: str, tracking: str) -> float:
    start = time.perf_counter()
    pilot = start_pilot(root / name / "runs", *standin(40, 0.1), tracking)
    pilot.wait()
    return time.perf_counter() - start


def main() -> None:
    deaf = Deaf()
    arms = {
        "off": "tracking=off",
        "refused": f"tracking.uri=http://127.0.0.1:{free_port()}",
        "deaf": f"tracking.uri={deaf.uri}",
    }
    measured: dict[str, list[float]] = {arm: [] for arm in arms}
    with tempfile.TemporaryDirectory() as root:
        for number in range(ROUNDS):
            for arm, tracking in arms.items():
                measured[arm].append(seconds(Path(root), f"{arm}-{number}", tracking))
    off = statistics.median(measured["off"])
    for arm, values in measured.items():
        median = statistics.median(values)
        spread = f"{min(values):.2f} to {max(values):.2f}"
        print(
            f"{arm:<8} {median:6.2f} s ({spread}), {median - off:+.2f} s and x{median / off:.2f} against tracking off"
        )


if __name__ == "__main__":
    main()
