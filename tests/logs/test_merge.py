"""Which rank speaks, how long others wait, and when a run is another run: the rules of harness.logs.merge."""

from __future__ import annotations

from harness.logs import Event, Row
from harness.logs.agree import same_value, seconds_between
from harness.logs.merge import PATIENCE, REMEMBERED, WAITING, WAITING_LIVE, Merger

INF, NAN = float("inf"), float("nan")


def row(step: int, rank: int | None = 0, loss: float | None = 5.0, time: int | None = None, **more: object) -> Row:
    stamp = None if time is None else f"2026-03-04T{time // 3600:02d}:{time // 60 % 60:02d}:{time % 60:02d}.000"
    return Row("train", 0, step, loss=loss, rank=rank, time=stamp, line=step, **more)  # type: ignore[arg-type]


def run(merger: Merger, *rows: Row) -> list[tuple[int, int, int | None]]:
    """Segment, step and rank of what goes out."""
    return [(r.segment, r.step, r.rank) for given in rows for r in merger.add(given) if isinstance(r, Row)]


def closed(merger: Merger) -> list[tuple[int, int | None]]:
    return [(r.step, r.rank) for r in merger.close() if isinstance(r, Row)]


def test_the_first_rank_with_a_loss_speaks_and_goes_out_at_once() -> None:
    merger = Merger()
    assert run(merger, row(1, 2)) == [(0, 1, 2)]
    assert run(merger, row(1, 0), row(1, 5), row(2, 0)) == []
    assert run(merger, row(2, 2)) == [(0, 2, 2)]
    assert closed(merger) == []


def test_a_step_the_speaker_skips_comes_from_another_rank() -> None:
    merger = Merger()
    assert run(merger, row(1, 0), row(1, 1), row(2, 1)) == [(0, 1, 0)]
    assert run(merger, row(3, 0)) == [(0, 2, 1), (0, 3, 0)]


def test_a_rank_that_goes_on_alone_takes_over() -> None:
    merger = Merger()
    out = run(merger, row(1, 0), *(row(step, 1) for step in range(1, PATIENCE + 1)))
    assert out == [(0, 1, 0)]
    assert run(merger, row(PATIENCE + 1, 1)) == []
    assert run(merger, row(PATIENCE + 2, 1)) == [(0, step, 1) for step in range(2, PATIENCE + 3)]
    assert run(merger, row(PATIENCE + 3, 1)) == [(0, PATIENCE + 3, 1)]


def test_what_waits_goes_out_at_the_end() -> None:
    merger = Merger(metrics_rank=7)
    assert run(merger, row(1, 0), row(2, 0)) == []
    assert closed(merger) == [(1, 0), (2, 0)]


def test_the_callers_metrics_rank_goes_before_the_logs() -> None:
    merger = Merger(metrics_rank=1)
    merger.name_metrics_rank(3)
    assert run(merger, row(1, 3), row(1, 1)) == [(0, 1, 1)]
    merger = Merger()
    merger.name_metrics_rank(3)
    assert run(merger, row(1, 1), row(1, 3)) == [(0, 1, 3)]


def test_the_sentinel_never_wins_however_much_later_the_loss_comes() -> None:
    merger = Merger()
    hidden = [row(step, 0, None) for step in range(1, 1001)]
    assert run(merger, *hidden) == []
    out = run(merger, *(row(step, 3) for step in range(1, 1001)))
    assert out == [(0, step, 3) for step in range(1, 1001)]
    assert closed(merger) == []


def test_hidden_rows_do_not_pile_up_without_end() -> None:
    merger = Merger()
    out = run(merger, *(row(step, 0, None) for step in range(1, WAITING + 11)))
    assert out == [(0, step, 0) for step in range(1, 11)]


def test_live_hidden_rows_wait_for_a_few_steps_only() -> None:
    merger = Merger(live=True)
    assert run(merger, *(row(step, 0, None) for step in range(1, WAITING_LIVE + 1))) == []
    assert run(merger, row(WAITING_LIVE + 1, 0, None)) == [(0, 1, 0)]
    assert run(merger, row(2, 3)) == [(0, 2, 3)]  # in time: the sentinel does not win


def test_a_loss_that_differs_by_rounding_is_no_disagreement() -> None:
    assert same_value(8.2041, 8.20412)
    assert not same_value(8.2041, 8.2044)
    assert same_value(NAN, NAN)
    assert same_value(INF, INF)
    assert not same_value(INF, 5.0)
    assert not same_value(NAN, 5.0)
    assert same_value(311568163286286336.0, 311568163286286000.0)


def test_disagreement_is_told_once_per_rank_and_column() -> None:
    merger = Merger()
    events = []
    for step in (1, 2, 3):
        for rank in (0, 1, 2):
            events += [e for e in merger.add(row(step, rank, 5.0 + rank * (step > 1))) if isinstance(e, Event)]
    assert [(e.kind, e.rank, e.data["step"], e.data["column"]) for e in events] == [
        ("rank_disagreement", 1, 2, "loss"),
        ("rank_disagreement", 2, 2, "loss"),
    ]


def test_a_counter_that_goes_back_is_a_new_run() -> None:
    merger = Merger()
    assert run(merger, row(10, time=0), row(20, time=10), row(1, time=60)) == [(0, 10, 0), (0, 20, 0), (1, 1, 0)]


def test_ranks_enter_a_new_run_one_after_the_other() -> None:
    merger = Merger()
    first = (row(5, 0, time=0), row(5, 1, time=0))
    out = run(merger, *first, row(1, 0, time=60), row(6, 1, time=1), row(1, 1, time=60), row(2, 0, time=61))
    assert out == [(0, 5, 0), (1, 1, 0), (1, 2, 0)]  # rank 1's late step 6 belongs to the run that is over


def test_the_same_step_again_tells_a_rank_from_a_run_by_its_time() -> None:
    def again(seconds: int, loss: float) -> int:
        merger = Merger()
        run(merger, row(5, None, 5.0, time=100), row(5, None, loss, time=100 + seconds))
        return merger.segment

    assert again(0, 5.0) == 0
    assert again(2, 6.0) == 0  # another replica
    assert again(30, 5.0) == 0  # another node's clock
    assert again(30, 6.0) == 1
    assert again(300, 5.0) == 1


def test_without_times_the_same_values_are_another_rank_but_not_two_steps_later() -> None:
    merger = Merger()
    assert run(merger, row(1, None, 5.0), row(1, None, 5.0), row(2, None, 4.0), row(1, None, 5.0)) == [
        (0, 1, None),
        (0, 2, None),
    ]
    assert run(merger, row(3, None, 3.0), row(1, None, 5.0)) == [(0, 3, None), (1, 1, None)]


def test_an_announced_start_makes_the_same_step_another_run() -> None:
    merger = Merger()
    run(merger, row(1, time=0))
    (event,) = merger.started(1, 0, "2026-03-04T00:00:01.000", 5)
    assert isinstance(event, Event)
    assert event.to_json() == {
        "kind": "new_segment", "segment": 1, "rank": 0, "time": "2026-03-04T00:00:01.000", "line": 5,
        "data": {"step": 1, "previous_step": 1, "reason": "training starts again"},
    }  # fmt: skip
    assert run(merger, row(1, time=2)) == [(1, 1, 0)]


def test_a_resume_further_on_is_the_same_run_and_other_ranks_starts_are_none() -> None:
    merger = Merger()
    run(merger, row(50, time=0))
    assert merger.started(51, 0, None, 5) == []
    assert merger.started(1, 1, None, 6) == []
    assert run(merger, row(51, time=9)) == [(0, 51, 0)]


def test_memory_is_bounded_and_forgotten_steps_stay_gone() -> None:
    merger = Merger()
    steps = REMEMBERED + 500
    out = run(merger, *(row(step, 0) for step in range(1, steps + 1)))
    assert len(out) == steps
    assert len(merger._sent) == REMEMBERED
    assert run(merger, *(row(step, 1) for step in range(1, steps + 1))) == []
    assert closed(merger) == []


def test_times_that_cannot_be_are_unknown() -> None:
    assert seconds_between("2026-99-99T00:00:00", "2026-01-01T00:00:00", -1.0) == -1.0
    assert seconds_between(b"2026-01-01 00:00:00,500", "2026-01-01T00:00:02.000", None) == 1.5
    assert seconds_between(None, "2026-01-01T00:00:02.000", None) is None
