"""A small plot as inline SVG: one panel, linear or logarithmic axes, every axis with a name and a unit.

Colours and fonts come from the page's style sheet through classes, so that a plot follows its page (dark mode
included). Everything that is text is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

CHAR = 6.4
"""Width of a digit of the 11 px tick labels, px; rather too wide than too narrow."""
TICK_GAP, LABEL_GAP = 8, 20
MAX_POINTS = 1200
"""Of one line: more than there are pixels is only bytes."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis: its range in data units and what it shows."""

    label: str
    """With the unit, e.g. ``step time (s)``."""
    low: float
    high: float
    log: bool = False
    integers: bool = False
    names: tuple[tuple[float, str], ...] = ()
    """Ticks given by name instead of computed ones."""

    @classmethod
    def around(
        cls, label: str, values: Iterable[float], *, log: bool = False, integers: bool = False, pad: float = 0.06
    ) -> Axis:
        """An axis that holds all finite values, with some room; a range of its own where they are all the same."""
        finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
        if log:
            low, high = math.log10(low), math.log10(high)
        room = (high - low) * pad or abs(high) * 0.02 or 0.5
        # Numbered things start at 1: no tick at a run or step 0 that does not exist.
        low, high = low - (0.6 if integers else room), high + (max(room, 0.6) if integers else room)
        if log:
            low, high = 10**low, 10**high
        return cls(label=label, low=low, high=high, log=log, integers=integers)

    def place(self, value: float) -> float:
        """Where a value lies, 0 to 1."""
        if self.log:
            return (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        if self.names:
            return list(self.names)
        values = _log_ticks(self.low, self.high) if self.log else _ticks(self.low, self.high, most, self.integers)
        if self.log and len(values) < 2:
            values = _ticks(self.low, self.high, most, False)
        return list(zip(values, _tick_texts(values), strict=True))


@dataclass
class Plot:
    """A panel of ``width`` x ``height`` px. Draw with the methods, in order from back to front, then ``render``."""

    title: str
    x: Axis
    y: Axis
    width: int = 520
    height: int = 260
    right: int = 16
    marks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._y_ticks = self.y.ticks(max(3, self.height // 45))
        widest = max((len(text) for _, text in self._y_ticks), default=1)
        self.left = widest * CHAR + TICK_GAP + (LABEL_GAP + 4 if self.y.label else 4)
        self.top, self.bottom = 12, 46

    # -- coordinates ---------------------------------------------------------------------------------------------------

    def px(self, value: float) -> float:
        return round(self.left + self.x.place(value) * (self.width - self.left - self.right), 2)

    def py(self, value: float) -> float:
        return round(self.height - self.bottom - self.y.place(value) * (self.height - self.top - self.bottom), 2)

    # -- marks ---------------------------------------------------------------------------------------------------------

    def line(self, points: Sequence[tuple[float, float]], kind: str, title: str = "") -> None:
        """A line through the points; a value that is not finite interrupts it."""
        for part in _finite_parts(points, self):
            if len(part) == 1:
                self.point(*part[0], kind, title)
            else:
                path = " ".join(f"{self.px(x)},{self.py(y)}" for x, y in part)
                self.marks.append(f'<polyline class="line {kind}" points="{path}">{_title(title)}</polyline>')

    def point(self, x: float, y: float, kind: str, title: str = "", *, radius: float = 3.5) -> None:
        if math.isfinite(x) and math.isfinite(y):
            place = f'cx="{self.px(x)}" cy="{self.py(y)}" r="{radius}"'
            self.marks.append(f'<circle class="point {kind}" {place}>{_title(title)}</circle>')

    def triangle(self, x: float, y: float, kind: str, title: str = "") -> None:
        px, py = self.px(x), self.py(y)
        corners = f"{px},{py - 5} {px - 4.5},{py + 3.5} {px + 4.5},{py + 3.5}"
        self.marks.append(f'<polygon class="mark {kind}" points="{corners}">{_title(title)}</polygon>')

    def whisker(self, low: float, high: float, y: float, kind: str) -> None:
        """A horizontal interval; an end beyond the axis becomes an arrow."""
        row = self.py(y)
        ends = []
        for value, sign in ((low, -1), (high, 1)):
            inside = self.x.low <= value <= self.x.high
            place = self.px(min(max(value, self.x.low), self.x.high))
            ends.append(place)
            if inside:
                self.marks.append(f'<path class="line {kind}" d="M{place},{row - 4}V{row + 4}"/>')
            else:
                tip = f"M{place - 5 * sign},{row - 4}L{place},{row}L{place - 5 * sign},{row + 4}"
                self.marks.append(f'<path class="line {kind}" d="{tip}"/>')
        self.marks.append(f'<path class="line thick {kind}" d="M{ends[0]},{row}H{ends[1]}"/>')

    def band(self, kind: str, *, x: tuple[float, float] | None = None, y: tuple[float, float] | None = None) -> None:
        """A shaded range of x or of y over the whole panel, cut at its edges."""
        x_low, x_high = x or (self.x.low, self.x.high)
        y_low, y_high = y or (self.y.low, self.y.high)
        left, right = self.px(max(x_low, self.x.low)), self.px(min(x_high, self.x.high))
        bottom, top = self.py(max(y_low, self.y.low)), self.py(min(y_high, self.y.high))
        if right > left and bottom > top:
            size = f'width="{right - left:.2f}" height="{bottom - top:.2f}"'
            self.marks.append(f'<rect class="band {kind}" x="{left}" y="{top}" {size}/>')

    def rule(self, kind: str, *, x: float | None = None, y: float | None = None) -> None:
        """A line across the panel at one x or y, if that lies inside."""
        if x is not None and self.x.low <= x <= self.x.high:
            self.marks.append(f'<path class="rule {kind}" d="M{self.px(x)},{self.top}V{self.height - self.bottom}"/>')
        if y is not None and self.y.low <= y <= self.y.high:
            self.marks.append(
                f'<path class="rule {kind}" d="M{self.left:.1f},{self.py(y)}H{self.width - self.right}"/>'
            )

    def label(self, px: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """Text at a pixel column and a data row."""
        place = f'x="{px:.1f}" y="{self.py(y) + 4:.1f}" text-anchor="{anchor}"'
        self.marks.append(f'<text class="note {kind}" {place}>{escape(text)}</text>')

    # -- the whole -----------------------------------------------------------------------------------------------------

    def render(self) -> str:
        """The SVG element."""
        frame = [self._grid(), *self.marks, self._names()]
        box = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        return f'<svg class="plot" role="img" {box}><title>{escape(self.title)}</title>{"".join(frame)}</svg>'

    def _grid(self) -> str:
        parts = []
        floor, right = self.height - self.bottom, self.width - self.right
        for value, text in self._y_ticks:
            row = self.py(value)
            parts.append(f'<path class="grid" d="M{self.left:.1f},{row}H{right}"/>')
            parts.append(f'<text class="tick" x="{self.left - TICK_GAP:.1f}" y="{row + 4}" text-anchor="end">')
            parts.append(f"{escape(text)}</text>")
        for value, text in self._x_ticks():
            parts.append(f'<path class="grid" d="M{self.px(value)},{self.top}V{floor}"/>')
            parts.append(f'<text class="tick" x="{self.px(value)}" y="{floor + 16}" text-anchor="middle">')
            parts.append(f"{escape(text)}</text>")
        return "".join(parts)

    def _x_ticks(self) -> list[tuple[float, str]]:
        """As many as fit beside each other."""
        for most in range(10, 1, -1):
            ticks = self.x.ticks(most)
            widest = max((len(text) for _, text in ticks), default=1) * CHAR + 14
            places = [self.px(value) for value, _ in ticks]
            if all(second - first >= widest for first, second in pairwise(places)):
                return ticks
        return self.x.ticks(2)

    def _names(self) -> str:
        middle_x = (self.left + self.width - self.right) / 2
        middle_y = (self.top + self.height - self.bottom) / 2
        place = f'x="{middle_x:.1f}" y="{self.height - 8}" text-anchor="middle"'
        parts = [f'<text class="axis" {place}>{escape(self.x.label)}</text>']
        if self.y.label:
            turn = f'transform="translate(14 {middle_y:.1f}) rotate(-90)"'
            parts.append(f'<text class="axis" {turn} text-anchor="middle">{escape(self.y.label)}</text>')
        return "".join(parts)


def _finite_parts(points: Sequence[tuple[float, float]], plot: Plot) -> list[list[tuple[float, float]]]:
    parts: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if math.isfinite(x) and math.isfinite(y) and (y > 0 or not plot.y.log):
            parts[-1].append((x, y))
        elif parts[-1]:
            parts.append([])
    return [_thinned(part) for part in parts if part]


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The lowest and the highest point of each of ``MAX_POINTS / 2`` stretches: no spike is lost."""
    if len(points) <= MAX_POINTS:
        return points
    kept = []
    stretch = 2 * len(points) / MAX_POINTS
    for index in range(MAX_POINTS // 2):
        part = points[round(index * stretch) : round((index + 1) * stretch)]
        low, high = min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])
        kept += sorted({low, high})
    return kept


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def _ticks(low: float, high: float, most: int, integers: bool) -> list[float]:
    """Round numbers, at most ``most`` of them, from 1, 2 or 5 times a power of ten."""
    raw = (high - low) / max(1, most)
    power = 10 ** math.floor(math.log10(raw))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= raw * 0.999)
    step = max(1.0, step) if integers else step
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(decades) <= 4 else (1,)
    values = [factor * 10.0**decade for decade in decades for factor in factors]
    return [value for value in values if low <= value <= high]


def _tick_texts(values: Sequence[float]) -> list[str]:
    """All with as many decimals as the finest of them needs; thousands separated; a real minus sign."""
    if not values:
        return []
    largest = max(abs(value) for value in values)
    if largest and (largest >= 1e7 or largest < 1e-4):
        return [f"{value:.2g}".replace("-", "−") if value else "0" for value in values]
    texts = [f"{value:.10f}".rstrip("0") for value in values]
    decimals = max(len(text.partition(".")[2]) for text in texts)
    return [f"{value + 0.0:,.{decimals}f}".replace("-", "−") for value in values]
