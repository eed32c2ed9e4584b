"""One row per step: which rank speaks, and where one run ends and the next begins.

The rule for several ranks, which depends on the order of the lines and on nothing else:

* The *metrics rank* speaks where it is known (given by the caller, or named by the log's "Pipeline Parallel loss is not
  visible. Please add rank N"); else the first rank that shows a visible loss does. Its rows go out at once.
* What other ranks show for a step the speaker has shown is dropped, after a comparison: a loss or gradient norm that
  differs beyond rounding is reported once per rank as ``rank_disagreement``.
* What they show for a step the speaker has not shown yet waits. It goes out when the speaker skips that step, when the
  speaker has been silent for ``PATIENCE`` steps of others (who then speak from there on), or at the end.
* A rank that shows only the pipeline sentinel never speaks while another shows the loss: its rows wait (at most
  ``WAITING`` steps) and go out, with a null loss, only if no rank ever shows that step's loss.

The rule for several runs in one log: a step counter that goes back, of the same rank, starts a new segment, and so does the
same step once more with other values at another time or after a new start. The same step again at the same time is another,
unlabelled rank. A resume whose counter goes on stays in its segment.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime

from harness.logs.records import Event, Row

PATIENCE = 8
WAITING = 4096
REMEMBERED = 4096
"""How many of the last steps are remembered for comparison."""
SAME_MOMENT_S = 3.0
"""Two prints of one step by different ranks are never further apart than this; two runs always are."""


@dataclass(slots=True)
class _Stream:
    """What one rank has printed so far."""

    segment: int
    last: dict[str, int] = field(default_factory=dict)
    """Last step per kind of row."""
    time: str | None = None
    restarted: bool = False
    """Whether a start was announced since the last row."""


@dataclass(slots=True)
class _Shown:
    """What has gone out, or waits, for one step."""

    loss: float | None
    grad_norm: float | None
    time: str | None
    rank: int | None
    line: int


class Merger:
    """Takes rows in the order of the log and gives back what is to go out."""

    def __init__(self, metrics_rank: int | None = None):
        self._given = metrics_rank
        self._speaker: int | None = metrics_rank
        self._has_speaker = metrics_rank is not None
        self.segment = 0
        self._streams: dict[int | None, _Stream] = {}
        self._shown: OrderedDict[tuple[str, int], _Shown] = OrderedDict()
        self._newest: dict[str, int] = {}
        self._waiting: OrderedDict[tuple[str, int], Row] = OrderedDict()
        self._told: set[tuple[int | None, str]] = set()
        self._start_line: int | None = None

    def name_metrics_rank(self, rank: int) -> None:
        """The log itself names the rank that sees the loss; the caller's word goes first."""
        if self._given is None:
            self._speaker, self._has_speaker = rank, True

    def started(self, step: int, rank: int | None, time: str | None, line: int) -> list[Row | Event]:
        """ "Training starts at step ``step``" was printed by ``rank``."""
        stream = self._streams.get(rank)
        if stream is None or not stream.last:
            return []
        if _earlier(time, stream.time):
            return []
        if step <= stream.last.get("train", 0):
            return self._advance(stream, step, rank, time, line, "training starts again")
        stream.restarted = True
        return []

    def segment_of(self, rank: int | None) -> int:
        stream = self._streams.get(rank)
        return stream.segment if stream is not None else self.segment

    def add(self, row: Row) -> list[Row | Event]:
        stream = self._streams.get(row.rank)
        if stream is None:
            stream = self._streams[row.rank] = _Stream(self.segment)
        out: list[Row | Event] = []
        last = stream.last.get(row.kind)
        if last is not None and row.step <= last and self._is_new_run(stream, row, last):
            out += self._advance(stream, row.step, row.rank, row.time, row.line, "the step counter goes back")
        stream.restarted = False
        if last is None or row.step > stream.last.get(row.kind, -1):
            stream.last[row.kind] = row.step
        stream.time = row.time or stream.time
        row.segment = stream.segment
        if stream.segment < self.segment:  # a late print of a run that is over
            return out
        return out + self._place(row)

    def _is_new_run(self, stream: _Stream, row: Row, last: int) -> bool:
        if stream.restarted:
            return True
        if stream.segment < self.segment:  # another rank has already begun the next run
            return not _earlier(row.time, stream.time)
        shown = self._shown.get((row.kind, row.step)) or self._as_shown((row.kind, row.step))
        if shown is None:
            return True
        gap = _seconds(shown.time, row.time)
        same = _same(shown.loss, row.loss) and _same(shown.grad_norm, row.grad_norm)
        if gap is None:
            return not (same or row.loss is None or shown.loss is None)
        return abs(gap) > SAME_MOMENT_S

    def _as_shown(self, key: tuple[str, int]) -> _Shown | None:
        row = self._waiting.get(key)
        return None if row is None else _Shown(row.loss, row.grad_norm, row.time, row.rank, row.line)

    def _advance(
        self, stream: _Stream, step: int, rank: int | None, time: str | None, line: int, reason: str
    ) -> list[Row | Event]:
        """Move ``stream`` to the next segment, opening it if no other rank has."""
        previous = dict(stream.last)
        stream.last.clear()
        if stream.segment < self.segment:
            stream.segment = self.segment
            return []
        out = self._release_all()
        self.segment += 1
        stream.segment = self.segment
        self._shown.clear()
        self._newest.clear()
        self._told.clear()
        data = {"step": step, "previous_step": max(previous.values(), default=None), "reason": reason}
        out.append(Event("new_segment", line, time, rank, self.segment, data))
        return out

    def _place(self, row: Row) -> list[Row | Event]:
        key = (row.kind, row.step)
        shown = self._shown.get(key)
        if shown is not None:
            return self._compare(row, shown)
        if row.step <= self._newest.get(row.kind, -1) and key not in self._waiting:
            if not self._skipped(row):
                return []
        visible = row.loss is not None
        if not self._has_speaker and visible:
            self._speaker, self._has_speaker = row.rank, True
        if visible and row.rank == self._speaker:
            waiting = self._waiting.pop(key, None)
            out = self._release(lambda step: step < row.step, row.kind)
            out += self._send(row)
            if waiting is not None:
                out += self._compare(waiting, self._shown[key])
            return out
        waiting = self._waiting.get(key)
        if waiting is None or (waiting.loss is None and visible):
            self._waiting[key] = row
        return self._hurry()

    def _skipped(self, row: Row) -> bool:
        """Whether the step was really never shown (and not merely forgotten)."""
        oldest = next((step for kind, step in self._shown if kind == row.kind), None)
        return oldest is not None and row.step > oldest and row.loss is not None

    def _hurry(self) -> list[Row | Event]:
        """Release what has waited too long; a rank that goes on while the speaker is silent takes over."""
        visible = [key for key, row in self._waiting.items() if row.loss is not None]
        if len(visible) > PATIENCE:
            self._speaker, self._has_speaker = self._waiting[visible[0]].rank, True
            return self._release(lambda step: step <= visible[-1][1], visible[0][0])
        if len(self._waiting) > WAITING:
            return self._send(self._waiting.popitem(last=False)[1])
        return []

    def _release(self, due, kind: str) -> list[Row | Event]:
        keys = sorted(key for key in self._waiting if key[0] == kind and due(key[1]))
        out: list[Row | Event] = []
        for key in keys:
            out += self._send(self._waiting.pop(key))
        return out

    def _release_all(self) -> list[Row | Event]:
        rows = sorted(self._waiting.values(), key=lambda row: (row.step, row.line))
        self._waiting.clear()
        out: list[Row | Event] = []
        for row in rows:
            out += self._send(row)
        return out

    close = _release_all

    def _send(self, row: Row) -> list[Row | Event]:
        self._shown[row.kind, row.step] = _Shown(row.loss, row.grad_norm, row.time, row.rank, row.line)
        self._newest[row.kind] = max(row.step, self._newest.get(row.kind, -1))
        if len(self._shown) > REMEMBERED:
            self._shown.popitem(last=False)
        return [row]

    def _compare(self, row: Row, shown: _Shown) -> list[Row | Event]:
        if row.loss is None or shown.loss is None:
            return []
        out: list[Row | Event] = []
        for name, mine, theirs in (
            ("loss", row.loss, shown.loss),
            ("grad_norm", row.grad_norm, shown.grad_norm),
        ):
            if mine is None or theirs is None or _same(mine, theirs) or (row.rank, name) in self._told:
                continue
            self._told.add((row.rank, name))
            data = {"step": row.step, "column": name, "value": mine, "kept": theirs, "kept_rank": shown.rank}
            out.append(Event("rank_disagreement", row.line, row.time, row.rank, row.segment, data))
        return out


def _same(a: float | None, b: float | None) -> bool:
    """Equal up to rounding in the fourth decimal (and to float32's resolution for large values)."""
    if a is None or b is None:
        return a is b
    if a != a or b != b:
        return a != a and b != b
    if a == b:
        return True
    return abs(a - b) <= max(1.5e-4, 1e-6 * max(abs(a), abs(b)))


def _seconds(first: str | None, second: str | None) -> float | None:
    """Seconds from one time stamp to another, ``None`` where either is missing or impossible."""
    if first is None or second is None:
        return None
    try:
        return (datetime.fromisoformat(second[:26]) - datetime.fromisoformat(first[:26])).total_seconds()
    except ValueError:
        return None


def _earlier(time: str | None, than: str | None) -> bool:
    gap = _seconds(than, time)
    return gap is not None and gap < 0
