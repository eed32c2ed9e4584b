"""What a person sees while a pilot runs: one live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_EVERY_S = 5.0
PLAIN_ALL_UP_TO = 30


def printable(text: str) -> str:
    """``text`` without control characters: what a log says must not drive the terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


class Progress:
    """Phase, step of steps, loss, tokens/s and elapsed time."""

    def __init__(self, console: Console, *, num_steps: int, num_ranks: int) -> None:
        self._console = console
        self._num_steps, self._num_ranks = num_steps, num_ranks
        self._started = time.monotonic()
        self._last_plain = -PLAIN_EVERY_S
        self._live = None
        self._phase, self._step, self._loss, self._tps = "", 0, None, None

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(self, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def phase(self, name: str) -> None:
        if name != self._phase:
            self._phase = name
            if self._live is None:
                self._console.print(f"[{self.elapsed:6.1f} s] {name}", markup=False, highlight=False)

    def step(self, step: int, loss: float | None, tps_per_rank: float | None) -> None:
        """A logged training step; ``tps_per_rank`` is torchtitan's tokens per second of one rank."""
        self._step, self._loss, self._tps = step, loss, tps_per_rank
        self.phase("training")
        due = self._num_steps <= PLAIN_ALL_UP_TO or time.monotonic() - self._last_plain >= PLAIN_EVERY_S
        if self._live is None and (due or step >= self._num_steps):
            self._last_plain = time.monotonic()
            self._console.print(f"[{self.elapsed:6.1f} s] {self._figures()}", markup=False, highlight=False)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def _figures(self) -> str:
        loss = "–" if self._loss is None else f"{self._loss:.4f}"
        tokens = "–" if self._tps is None else f"{self._tps * self._num_ranks:,.0f}"
        return f"step {self._step}/{self._num_steps}  loss {loss}  tokens/s {tokens}"

    def __rich__(self):
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.table import Table

        line = Table.grid(padding=(0, 2))
        cells = [Spinner("dots"), f"{self._phase}", ProgressBar(total=self._num_steps, completed=self._step, width=24)]
        if self._step:
            cells.append(self._figures())
        line.add_row(*cells, f"{self.elapsed:.0f} s")
        return line
