"""Running a snippet in a process of its own: for what depends on what was imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, *, path: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``code``; modules in ``path`` come first."""
    places = [str(place) for place in (path, ROOT) if place is not None]
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env=_environment() | environment | {"PYTHONPATH": os.pathsep.join(places)},
    )


def kernels(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m kernels ARGUMENTS``."""
    command = [sys.executable, "-m", "kernels", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=_environment())


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PILOT_", "NEURON_"))}
    return kept | {"OMP_NUM_THREADS": "1"}
