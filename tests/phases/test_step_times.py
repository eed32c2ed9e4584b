"""Seconds per step from rows: which source, what is flagged, what the log explains."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest

from harness.logs import Event, Row
from harness.step_times import step_times

START = datetime(2026, 10, 20, 10, 0, 0)
TOKENS = 2048


def stamp(second: float) -> str:
    return (START + timedelta(seconds=second)).isoformat(timespec="milliseconds")


def rows(durations: list[float], steps: list[int] | None = None, *, clock: bool = True, **changes: Any) -> list[Row]:
    """One row per duration (seconds per step), ten log lines apart, with ``tps`` and times that agree."""
    found, second = [], 0.0
    steps = steps or list(range(1, len(durations) + 1))
    for i, (duration, step) in enumerate(zip(durations, steps, strict=True)):
        second += duration * (step - (steps[i - 1] if i else step - 1))
        values = {"tps": TOKENS / duration, "time": stamp(second) if clock else None, "line": 100 + 10 * i}
        found.append(Row("train", 0, step, **(values | changes)))
    return found


def start(second: float = 0.0, step: int = 1, line: int = 50) -> Event:
    return Event("training_start", line, stamp(second), data={"step": step})


def test_tps_and_clock_agree() -> None:
    found = step_times(rows([9.0, 1.0, 1.1, 0.9]), [start()], tokens_per_step=TOKENS)
    assert (found.source, found.tokens_source, found.disagreeing, found.notes) == ("tps", "given", (), ())
    assert found.seconds == pytest.approx([9.0, 1.0, 1.1, 0.9])
    assert found.from_clock == pytest.approx([9.0, 1.0, 1.1, 0.9], abs=0.002)
    assert found.total == pytest.approx(12.0)


def test_the_first_line_is_timed_from_the_start_of_training() -> None:
    logged = rows([9.0, 1.0, 1.0, 1.0])
    logged[0].tps = TOKENS / 15.0  # torchtitan's clock runs since the model was built
    found = step_times(logged, [start()], tokens_per_step=TOKENS)
    assert found.seconds[0] == pytest.approx(9.0)
    assert found.from_tps[0] == pytest.approx(15.0)
    assert "15.00 s by tps" in found.notes[0]
    assert "9.00 s" in found.notes[0]
    alone = step_times(logged, tokens_per_step=TOKENS)
    assert alone.seconds[0] == pytest.approx(15.0)


def test_where_not_every_step_is_logged_the_clock_counts() -> None:
    found = step_times(rows([9.0, 1.0, 1.1, 0.9], [1, 10, 20, 30]), [start()], tokens_per_step=TOKENS)
    assert found.source == "clock"
    assert list(found.num_steps) == [1, 9, 10, 10]
    assert found.seconds == pytest.approx([9.0, 1.0, 1.1, 0.9], abs=0.001)


def test_coarse_tps_gives_way_to_the_clock() -> None:
    logged = rows([1.0] * 8)
    for i, row in enumerate(logged):
        row.tps = 3.0 + i % 2  # rounded to 3 or 4
    assert step_times(logged, tokens_per_step=3.5).source == "clock"


def test_a_coarse_clock_gives_way_to_tps() -> None:
    logged = rows([0.3] * 8, [10 * i for i in range(1, 9)])
    for row in logged:
        row.time = row.time[:19]
    assert step_times(logged, tokens_per_step=TOKENS).source == "tps"


def test_tokens_of_a_step_are_estimated_where_nobody_gives_them() -> None:
    found = step_times(rows([9.0, 1.0, 1.1, 0.9, 1.0]))
    assert found.tokens_source == "estimated"
    assert found.tokens_per_step == pytest.approx(TOKENS, rel=0.002)


def test_without_tokens_and_times_only_ratios_are_known() -> None:
    found = step_times(rows([9.0, 1.0, 1.0], clock=False))
    assert (found.source, found.tokens_per_step, found.tokens_source) == ("relative", None, "unknown")
    assert found.seconds[0] / found.seconds[1] == pytest.approx(9.0)


def test_times_alone() -> None:
    found = step_times(rows([9.0, 1.0, 1.1, 0.9], tps=None))
    assert (found.source, found.tokens_per_step) == ("clock", None)
    assert list(found.last_step) == [2, 3, 4]  # nothing tells when the first step began
    assert found.seconds == pytest.approx([1.0, 1.1, 0.9], abs=0.002)


def test_no_time_at_all() -> None:
    found = step_times(rows([1.0, 1.0], tps=None, clock=False))
    assert (found.source, len(found)) == ("none", 0)
    assert len(step_times([])) == 0


def test_disagreement_is_flagged() -> None:
    logged = rows([1.0] * 10)
    for row in logged[4:7]:
        row.tps = 2 * TOKENS
    found = step_times(logged, [start()], tokens_per_step=TOKENS)
    assert found.disagreeing == (5, 6, 7)
    assert "at 3 of 10 steps" in found.notes[0]


def test_wrong_tokens_show_as_disagreement_everywhere() -> None:
    found = step_times(rows([1.0] * 10), [start()], tokens_per_step=2 * TOKENS)
    assert len(found.disagreeing) == 9


def test_a_validation_is_in_the_clock_and_not_in_tps() -> None:
    logged = rows([1.0] * 6)
    for row in logged[3:]:
        row.time = stamp((datetime.fromisoformat(row.time) - START).total_seconds() + 5.0)
    validation = Row("validate", 0, 3, line=125, time=stamp(8.0))
    found = step_times([*logged[:3], validation, *logged[3:]], [start()], tokens_per_step=TOKENS)
    assert found.seconds == pytest.approx([1.0] * 6)
    assert found.from_clock[3] == pytest.approx(6.0, abs=0.01)
    assert (found.disagreeing, found.causes[3]) == ((), "")


def test_a_validation_explains_a_slow_interval_by_the_clock() -> None:
    logged = rows([1.0, 1.0, 1.5, 1.0, 1.0, 1.0], [1, 10, 20, 30, 40, 50])
    validation = Row("validate", 0, 10, line=115)
    found = step_times([*logged[:2], validation, *logged[2:]], [start()], tokens_per_step=TOKENS)
    assert found.causes == ("", "", "validation", "", "", "")


@pytest.mark.parametrize(
    ("kind", "cause"),
    [("checkpoint_saved", "checkpoint"), ("gc", "gc"), ("dataset_reloop", "data"), ("profile", "profiler")],
)
def test_events_between_two_rows_explain_the_second(kind: str, cause: str) -> None:
    pause = Event(kind, 125, data={"seconds": 2.0} if kind != "dataset_reloop" else {})
    found = step_times(rows([9.0, 1.0, 1.0, 3.0, 1.0, 1.0]), [start(), pause], tokens_per_step=TOKENS)
    assert found.causes == ("", "", "", cause, "", "")


def test_an_event_too_short_for_what_the_step_lost_explains_nothing() -> None:
    collection = Event("gc", 125, data={"seconds": 0.05})
    found = step_times(rows([9.0, 1.0, 1.0, 3.0, 1.0, 1.0]), [start(), collection], tokens_per_step=TOKENS)
    assert found.causes[3] == ""


def test_what_comes_before_the_first_or_after_the_last_row_explains_nothing() -> None:
    around = [Event("checkpoint_saved", 60), Event("checkpoint_saved", 900)]
    found = step_times(rows([9.0, 1.0, 1.0]), [start(), *around], tokens_per_step=TOKENS)
    assert found.causes == ("", "", "")


def test_a_resumed_run_starts_its_clock_again() -> None:
    """The counter goes on after a restart an hour later: that hour is no step time."""
    logged = rows([9.0, 1.0, 1.0, 8.0, 1.0, 1.0])
    for row in logged[3:]:
        row.time = stamp((datetime.fromisoformat(row.time) - START).total_seconds() + 3600)
    found = step_times(logged, [start(), start(3600 + 11.0, step=4, line=125)], tokens_per_step=TOKENS)
    assert found.from_clock == pytest.approx([9.0, 1.0, 1.0, 8.0, 1.0, 1.0], abs=0.01)
    assert found.disagreeing == ()


def test_a_resumed_log_counts_its_first_step_as_one() -> None:
    found = step_times(rows([9.0, 1.0], [51, 52]), [start(step=51)], tokens_per_step=TOKENS)
    assert list(found.num_steps) == [1, 1]
    found = step_times(rows([9.0, 1.0], [2510, 2520]), [start(step=2501)], tokens_per_step=TOKENS)
    assert list(found.num_steps) == [10, 10]


def test_lines_cut_out_of_a_log() -> None:
    """``tps`` is of the last interval; the clock spans what was cut and may hide anything."""
    logged = rows([9.0, 1.0, 1.0, 1.7, 1.0, 1.0], [1, 10, 20, 200, 210, 220])
    logged[3].tps = TOKENS / 1.0
    found = step_times(logged, [start()], tokens_per_step=TOKENS)
    assert found.seconds[3] == pytest.approx(1.0)
    assert found.from_clock[3] == pytest.approx(1.7, abs=0.01)


def test_the_longest_segment_is_taken_and_a_step_counts_once() -> None:
    first = rows([9.0, 1.0])
    second = [
        Row("train", 1, row.step, tps=row.tps, time=row.time, line=row.line + 500) for row in rows([7.0, 2.0, 2.0])
    ]
    again = Row("train", 1, 3, tps=1.0, time=second[2].time, line=999)
    found = step_times([*first, *second, again], tokens_per_step=TOKENS)
    assert (found.segment, list(found.last_step)) == (1, [1, 2, 3])
    assert found.seconds == pytest.approx([7.0, 2.0, 2.0])


def test_a_clock_that_goes_back_is_no_time() -> None:
    logged = rows([1.0] * 5, tps=None)
    logged[3].time = stamp(0.5)
    found = step_times(logged, [start()])
    assert list(found.last_step) == [1, 2, 3, 5]
    assert np.isfinite(found.seconds).all()


def test_a_tps_of_zero_is_missing() -> None:
    logged = rows([1.0] * 5)
    logged[2].tps = 0
    found = step_times(logged, [start()], tokens_per_step=TOKENS)
    assert np.isnan(found.from_tps[2])
    assert found.seconds[2] == pytest.approx(1.0, abs=0.002)
