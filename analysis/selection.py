"""Which runs belong to an arm: conditions of the form ``key=value``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.runs import Run

NO_RUNS = "there is no run at all here: name the directory with --runs DIR, or a server with --mlflow URI"


@dataclass(frozen=True)
class Selector:
    """Runs whose settings equal all of these values; written as on the command line."""

    conditions: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Selector:
        """From ``key=value`` texts. Raises ValueError for one that is not of that form."""
        conditions = []
        for text in texts:
            key, equals, value = text.partition("=")
            if not equals or not key.strip() or not value.strip():
                raise ValueError(f"a condition is written key=value, not {text!r} (e.g. kernel=baseline)")
            conditions.append((key.strip().lstrip("+"), value.strip()))
        return cls(tuple(conditions))

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for key, _ in self.conditions)

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.conditions) or "any run"

    def matches(self, run: Run) -> bool:
        return all(same(run.setting(key), value) for key, value in self.conditions)

    def choose(self, runs: Sequence[Run]) -> list[Run]:
        """The runs that match. Raises ValueError where none does, with the values that there are."""
        chosen = [run for run in runs if self.matches(run)]
        if chosen:
            return chosen
        for count in range(1, len(self.conditions) + 1):
            so_far = Selector(self.conditions[:count])
            if not any(so_far.matches(run) for run in runs):
                before = [run for run in runs if Selector(self.conditions[: count - 1]).matches(run)]
                key = self.conditions[count - 1][0]
                raise ValueError(f"no run has {so_far}; {_values_of(key, before)}")
        raise ValueError(NO_RUNS)


def same(value: Any, text: str) -> bool:
    """Whether a recorded value is what ``text`` means on a command line (``4``: 4, ``true``: True, ``null``: None)."""
    if value is None:
        return text.lower() in ("null", "none", "")
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    if str(value) == text:
        return True
    if isinstance(value, (int, float)):
        try:
            return float(text) == value
        except ValueError:
            return False
    return False


def _values_of(key: str, runs: Sequence[Run]) -> str:
    values = sorted({str(run.setting(key)) for run in runs})
    if not runs:
        return NO_RUNS
    if values == ["None"]:
        return f"no run records a setting {key!r} (see: python -m analysis runs)"
    shown = ", ".join(values[:12]) + (", ..." if len(values) > 12 else "")
    return f"{key} is {'one of ' if len(values) > 1 else ''}{shown}"
