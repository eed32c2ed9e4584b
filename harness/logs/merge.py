"""One row per step: which rank speaks, and where one run ends and the next begins.

The rule for several ranks depends on the order of the lines and on nothing else:

* The *speaker* is the metrics rank where it is known (told by the caller, or named by the log's "Pipeline Parallel
  loss is not visible. Please add rank N"); else the first rank that shows a visible loss. Its rows go out at once.
* What other ranks show for a step that has gone out is dropped after a comparison: a loss or gradient norm that differs
  beyond rounding is reported, once per rank, column and segment, as ``rank_disagreement``.
* What they show for a step the speaker has not shown yet waits. It goes out when the speaker skips that step, when the
  speaker has been silent while others went on for ``PATIENCE`` steps (who then speak from there on), or at the end.
* A row with the pipeline sentinel instead of a loss never wins over one that shows the loss. It waits (``WAITING``
  steps at most, ``WAITING_LIVE`` where somebody waits for it) and goes out, with a null loss, only if no rank shows
  that step's loss.

The rule for several runs in one log: a step counter that goes back, of the same rank, starts a new segment; so does
the same step once more at another time, or with another loss where there are no times, or after training was
announced to start. The same step at the same moment is another, unlabelled rank. A resume whose counter goes on stays
in its segment.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from harness.logs.agree import disagreements, same_value, seconds_between
from harness.logs.records import Event, Row

PATIENCE = 64
"""torchrun prints what each rank wrote in the last 0.1 s in one go, so a rank may seem to be this many steps ahead."""
WAITING = 4096
WAITING_LIVE = 4
REMEMBERED = 4096
"""How many of the last steps are remembered for comparison."""
SAME_MOMENT_S = 3.0
"""Two prints of one step by different ranks are never further apart than this; two runs are."""
SAME_VALUES_S = 60.0
"""The same where the values are equal as well: clocks of nodes differ."""

Key = tuple[str, int]
"""Kind and step of a row."""


@dataclass(slots=True)
class Stream:
    """What one rank has printed so far."""

    segment: int
    train: int = -1
    """Last step of its training rows in this segment."""
    validate: int = -1
    """The same of its validation rows."""
    time: str | None = None
    started: bool = False
    """Whether a start of training was announced since the last row."""

    def last(self, kind: str) -> int:
        return self.train if kind == "train" else self.validate

    def advance(self, row: Row) -> None:
        """Note that ``row`` was printed."""
        if row.kind == "train":
            self.train = max(row.step, self.train)
        else:
            self.validate = max(row.step, self.validate)
        self.time = row.time or self.time
        self.started = False


class Merger:
    """Takes rows in the order of the log and gives back what is to go out."""

    def __init__(self, metrics_rank: int | None = None, *, live: bool = False):
        self._most_waiting = WAITING_LIVE if live else WAITING
        self._told_speaker = metrics_rank is not None
        self._speaker: int | None = metrics_rank
        self._has_speaker = metrics_rank is not None
        self._keep_speaker = metrics_rank is not None
        self.segment = 0
        self._streams: dict[int | None, Stream] = {}
        self._sent: OrderedDict[Key, Row] = OrderedDict()
        self._newest: dict[str, int] = {}
        self._waiting: OrderedDict[Key, Row] = OrderedDict()
        self._visible = 0
        """How many of the waiting rows show their loss."""
        self._told: set[tuple[int | None, str]] = set()

    def name_metrics_rank(self, rank: int) -> None:
        """The log itself says which rank sees the loss; the caller's word goes first."""
        if not self._told_speaker:
            self._speaker, self._has_speaker, self._keep_speaker = rank, True, True

    def segment_of(self, rank: int | None) -> int:
        """The segment that ``rank`` is in."""
        stream = self._streams.get(rank)
        return stream.segment if stream is not None else self.segment

    def started(self, step: int | None, rank: int | None, time: str | None, line: int) -> list[Row | Event]:
        """``rank`` announced that training starts at ``step`` (``None`` where the line does not say)."""
        stream = self.stream(rank)
        latest = max(stream.train, stream.validate)
        if latest < 0 or seconds_between(stream.time, time, 0.0) < 0:
            return []
        if step is not None and step <= latest:
            return self._advance(stream, step, rank, time, line, "training starts again")
        stream.started = True
        return []

    def stream(self, rank: int | None) -> Stream:
        """What ``rank`` has printed so far."""
        stream = self._streams.get(rank)
        if stream is None:
            stream = self._streams[rank] = Stream(self.segment)
        return stream

    def add(self, row: Row) -> list[Row | Event]:
        """What is to go out now that ``row`` has been read; sets its segment."""
        stream = self.stream(row.rank)
        if self._is_plain(stream, row):
            stream.advance(row)
            row.segment = self.segment
            return self._send(row)
        out: list[Row | Event] = []
        if row.step <= stream.last(row.kind) and self._is_new_run(stream, row):
            out = self._advance(stream, row.step, row.rank, row.time, row.line, "the step counter goes back")
        stream.advance(row)
        row.segment = stream.segment
        if stream.segment < self.segment:  # a late print of a run that is over
            return out
        return out + self._place(row)

    def _is_plain(self, stream: Stream, row: Row) -> bool:
        """Whether this is just the speaker's next step, with nobody waiting: the usual case, decided quickly."""
        return (
            not self._waiting
            and not stream.started
            and stream.segment == self.segment
            and row.loss is not None
            and self._has_speaker
            and row.rank == self._speaker
            and row.step > self._newest.get(row.kind, -1)
            and row.step > stream.last(row.kind)
        )

    def close(self) -> list[Row | Event]:
        """What was still waiting."""
        return self._release(lambda key: True)

    def _is_new_run(self, stream: Stream, row: Row) -> bool:
        if stream.started:
            return True
        if stream.segment < self.segment:  # another rank has begun the next run already
            return seconds_between(stream.time, row.time, 0.0) >= 0
        key = (row.kind, row.step)
        shown = self._sent.get(key) or self._waiting.get(key)
        if shown is None:
            return True
        hidden = row.loss is None or shown.loss is None
        same = same_value(shown.loss, row.loss) and same_value(shown.grad_norm, row.grad_norm)
        gap = seconds_between(shown.time, row.time, None)
        if gap is not None:
            return abs(gap) > (SAME_VALUES_S if same else SAME_MOMENT_S)
        return not (same or hidden) or self._steps_after(key) > 1

    def _steps_after(self, key: Key) -> int:
        """How many later steps have gone out, counted up to 2."""
        later = (1 for kind, step in reversed(self._sent) if kind == key[0] and step > key[1])
        return sum(islice(later, 2))

    def _advance(
        self, stream: Stream, step: int, rank: int | None, time: str | None, line: int, reason: str
    ) -> list[Row | Event]:
        """Move ``stream`` to the next segment, opening that if no other rank has."""
        previous = max(stream.train, stream.validate)
        stream.train = stream.validate = -1
        stream.started = False
        if stream.segment < self.segment:
            stream.segment = self.segment
            return []
        out = self.close()
        self.segment += 1
        stream.segment = self.segment
        self._sent.clear()
        self._newest.clear()
        self._told.clear()
        self._has_speaker = self._keep_speaker
        data = {"step": step, "previous_step": previous, "reason": reason}
        return [*out, Event("new_segment", line, time, rank, self.segment, data)]

    def _place(self, row: Row) -> list[Row | Event]:
        key = (row.kind, row.step)
        sent = self._sent.get(key)
        if sent is not None:
            return self._compare(row, sent)
        if key not in self._waiting and self._is_forgotten(row):
            return []
        visible = row.loss is not None
        if visible and not self._has_speaker:
            self._speaker, self._has_speaker = row.rank, True
        waiting = self._waiting.get(key)
        if visible and row.rank == self._speaker:
            if waiting is not None:
                self._take(key)
            out = self._release(lambda other: other[0] == row.kind and other[1] < row.step)
            out += self._send(row)
            return out + (self._compare(waiting, row) if waiting is not None else [])
        if waiting is None or (waiting.loss is None and visible):
            if waiting is not None:
                self._take(key)
            self._waiting[key] = row
            self._visible += visible
            return self._hurry()
        return self._compare(row, waiting)

    def _is_forgotten(self, row: Row) -> bool:
        """Whether the step went out so long ago that it is no longer remembered."""
        if row.step > self._newest.get(row.kind, -1) or len(self._sent) < REMEMBERED:
            return False
        oldest = next((step for kind, step in self._sent if kind == row.kind), row.step)
        return row.step < oldest

    def _hurry(self) -> list[Row | Event]:
        """Send what has waited too long; a rank that goes on while the speaker is silent speaks from there on."""
        if self._visible > PATIENCE:
            due = [key for key, row in self._waiting.items() if row.loss is not None]
            self._speaker, self._has_speaker = self._waiting[due[-1]].rank, True
            return self._release(lambda key: key[1] <= due[-1][1])
        if len(self._waiting) - self._visible > self._most_waiting:
            return self._send(self._take(next(key for key, row in self._waiting.items() if row.loss is None)))
        return []

    def _release(self, due: Callable[[Key], bool]) -> list[Row | Event]:
        """Send the waiting rows that are due, by step."""
        if not self._waiting:
            return []
        out: list[Row | Event] = []
        for key in sorted((key for key in self._waiting if due(key)), key=lambda key: (key[1], key[0])):
            out += self._send(self._take(key))
        return out

    def _take(self, key: Key) -> Row:
        row = self._waiting.pop(key)
        self._visible -= row.loss is not None
        return row

    def _send(self, row: Row) -> list[Row | Event]:
        self._sent[row.kind, row.step] = row
        if row.step > self._newest.get(row.kind, -1):
            self._newest[row.kind] = row.step
        if len(self._sent) > REMEMBERED:
            self._sent.popitem(last=False)
        return [row]

    def _compare(self, row: Row, kept: Row) -> list[Row | Event]:
        """Report, once per rank and column, where ``row`` differs from what was kept for its step."""
        found: list[Row | Event] = []
        for event in disagreements(row, kept):
            about = (row.rank, event.data["column"])
            if about not in self._told:
                self._told.add(about)
                found.append(event)
        return found
