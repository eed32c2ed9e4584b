"""Logs of ranks on a node's own disk while they are written, and in the shared run directory when all is over.

Many ranks that append to files on a network file system slow each other down. What the run is judged by (``train.log``,
``rows.jsonl``, ``events.jsonl`` of node 0) is written to the run directory at once all the same.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.rundir import RunDir
from harness.training import rank_logs


class Scratch:
    """``launch.scratch``, laid out like the run directory; without one, the run directory itself."""

    def __init__(self, place: str | None, run: RunDir) -> None:
        self._run = run
        self._own = Path(place) / run.run_id if place else None
        if self._own is not None:
            self._own.mkdir(parents=True, exist_ok=True)

    @property
    def folder(self) -> Path:
        return self._own or self._run.path

    def rank_logs(self, node: int) -> Path:
        return rank_logs(self.folder, node)

    def collect(self) -> None:
        """Copy everything to the run directory and remove it here; what cannot be copied stays here."""
        if self._own is None or not self._own.exists():
            return
        shutil.copytree(self._own, self._run.path, dirs_exist_ok=True)
        shutil.rmtree(self._own, ignore_errors=True)
