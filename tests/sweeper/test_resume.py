"""Which runs count, which would be mixed up, how long and how much: on synthetic run directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.plan import ConfigError
from harness.rundir import FAILED, KILLED, RUNNING
from harness.sweep.jobs import Sweep, settings_override
from harness.sweep.resume import Expected, circumstances, differences, expect, match_runs, refuse_to_mix, sweep_runs
from harness.sweep.view import comparison, expectation, in_words, order_line, unfinished
from tests.sweeper.synthetic import leave_run, two_arms


def places(sweep: Sweep) -> list[int]:
    """The places in the order that are still to run."""
    done, _ = match_runs(sweep.jobs, sweep_runs(sweep.directory, sweep.id))
    return [job.slot.order for job in unfinished(sweep.jobs, done)]


def test_jobs_carry_their_place_and_nothing_else_differs(tmp_path: Path) -> None:
    sweep = two_arms(tmp_path)
    assert [job.arm.letter for job in sweep.jobs] == ["A", "B", "B", "A"]
    assert sweep.jobs[2].overrides[-4:] == ("replicate=1", "block=1", "order=2", f"sweep='{sweep.id}'")
    first, last = sweep.jobs[0], sweep.jobs[3]
    assert first.key[0] == last.key[0]  # replicates hash alike
    assert first.key[0] != sweep.jobs[1].key[0]
    assert first.key[1:] == (0, 0)
    assert last.key[1:] == (1, 1)


def test_seed_per_replicate_is_equal_in_both_arms(tmp_path: Path) -> None:
    sweep = two_arms(tmp_path, replicates=3, vary_seed=True)
    seeds = {(job.arm.letter, job.slot.replicate): job.plan.config.train.seed for job in sweep.jobs}
    assert seeds == {("A", 0): 1, ("B", 0): 1, ("A", 1): 2, ("B", 1): 2, ("A", 2): 3, ("B", 2): 3}
    assert "train.seed=2" in sweep.jobs[2].overrides


def test_sweep_is_recognised_by_its_arms_and_order_not_by_its_length(tmp_path: Path) -> None:
    name = two_arms(tmp_path).id
    assert name == two_arms(tmp_path, replicates=8).id
    assert name == two_arms(tmp_path / "elsewhere").id
    others = [
        two_arms(tmp_path, ("nki_rope", "baseline")),
        two_arms(tmp_path, order="blocked"),
        two_arms(tmp_path, start_seed=1),
        two_arms(tmp_path, vary_seed=True),
        two_arms(tmp_path, ("baseline", "nki_rope"), "train.steps=11"),
    ]
    assert len({name, *(other.id for other in others)}) == 6


def test_only_missing_and_failed_jobs_run_again(tmp_path: Path) -> None:
    sweep = two_arms(tmp_path, replicates=3)
    good = leave_run(sweep.jobs[0], sweep)
    leave_run(sweep.jobs[1], sweep, state=KILLED, exit_code=130)
    leave_run(sweep.jobs[2], sweep, state=FAILED, exit_code=1)
    leave_run(sweep.jobs[3], sweep, exit_code=1)  # finished, but a check failed
    leave_run(sweep.jobs[4], sweep, state=RUNNING)
    assert places(sweep) == [1, 2, 3, 4, 5]
    again = leave_run(sweep.jobs[2], sweep)
    assert places(sweep) == [1, 3, 4, 5]
    done, failed = match_runs(sweep.jobs, sweep_runs(sweep.directory, sweep.id))
    assert {place: run.run_id for place, run in done.items()} == {0: good.run_id, 2: again.run_id}
    assert sorted(failed) == [1, 3, 4]


def test_added_replicates_join_those_that_are_there(tmp_path: Path) -> None:
    short, long = two_arms(tmp_path), two_arms(tmp_path, replicates=4)
    for job in short.jobs:
        leave_run(job, short)
    assert places(short) == []
    assert places(long) == [4, 5, 6, 7]


STRANGERS = {
    "another configuration": {"config_hash": "0123456789abcdef"},
    "another sweep": {"sweep": "rope_ab-00000000"},
    "no sweep": {"sweep": None},
}


@pytest.mark.parametrize("facts", STRANGERS.values(), ids=STRANGERS.keys())
def test_runs_of_something_else_do_not_count(facts: dict, tmp_path: Path) -> None:
    sweep = two_arms(tmp_path, replicates=1)
    leave_run(sweep.jobs[0], sweep, **facts)
    assert places(sweep) == [0, 1]


def test_identical_arms_are_told_apart_by_their_place(tmp_path: Path) -> None:
    sweep = two_arms(tmp_path, ("baseline", "baseline"))
    assert sweep.identical
    assert sweep.jobs[0].key == sweep.jobs[1].key
    leave_run(sweep.jobs[1], sweep)
    assert places(sweep) == [0, 2, 3]
    leave_run(sweep.jobs[0], sweep, order=17)  # ran in another place of the same block
    assert places(sweep) == [2, 3]
    leave_run(sweep.jobs[0], sweep)  # one too many: it is no substitute for another block
    assert places(sweep) == [2, 3]


def test_torn_records_count_as_missing(tmp_path: Path) -> None:
    sweep = two_arms(tmp_path, replicates=1)
    for job, name in zip(sweep.jobs, ("manifest.json", "status.json"), strict=True):
        run = leave_run(job, sweep)
        run.file(name).write_text('{"config_hash": "')
    assert places(sweep) == [0, 1]


# -- mixing -----------------------------------------------------------------------------------------------------------

OTHER = {
    "commit": ("git", "commit", "abc123", "git.commit was abc123"),
    "changes": ("git", "dirty", "sometimes", "git.dirty was sometimes"),
    "version": ("versions", "torch", "2.1.0", "versions.torch was 2.1.0"),
    "package gone": ("versions", "nki", "0.1", "versions.nki was 0.1, is not there"),
    "machine": ("hardware", "hostname", "elsewhere", "hardware.hostname was elsewhere"),
}


@pytest.mark.parametrize(("group", "key", "value", "message"), OTHER.values(), ids=OTHER.keys())
def test_other_circumstances_are_refused_with_both_values(
    group: str, key: str, value: str, message: str, tmp_path: Path
) -> None:
    sweep = two_arms(tmp_path, replicates=1)
    now = circumstances(sweep.jobs[0].plan)
    same = leave_run(sweep.jobs[0], sweep)
    refuse_to_mix([same], now)
    other = leave_run(sweep.jobs[1], sweep, **{group: now[group] | {key: value}})
    with pytest.raises(ConfigError) as refused:
        refuse_to_mix([same, other], now)
    assert message in str(refused.value)
    assert str(now[group].get(key, "not there")) in str(refused.value)
    assert other.run_id in str(refused.value)
    assert "sweep.mix=true" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 2


def test_the_python_executable_may_differ() -> None:
    earlier = {"hardware": {"python_executable": "python3", "cpu_count": 2}}
    assert differences(earlier, {"hardware": {"python_executable": "python", "cpu_count": 2}}) == []
    assert differences(earlier, {"hardware": {"cpu_count": 4}}) == ["hardware.cpu_count was 2, is 4"]


# -- time and cost ----------------------------------------------------------------------------------------------------


def test_time_and_cost_from_earlier_runs_of_the_same_configuration(tmp_path: Path) -> None:
    priced = ("platform.price_per_hour=36", "platform.price_date=2026-10-20")
    sweep = two_arms(tmp_path, ("baseline", "nki_rope"), *priced)
    assert expect(sweep, sweep.jobs, tmp_path) == Expected(
        seconds=None, cost=None, num_runs=0, unknown=("kernel=baseline", "kernel=nki_rope")
    )
    for seconds in (50.0, 60.0, 100.0):  # median 60
        leave_run(sweep.jobs[0], sweep, seconds=seconds)
    leave_run(sweep.jobs[0], sweep, seconds=5.0, state=KILLED, exit_code=130)  # says nothing about a whole run
    one = expect(sweep, sweep.jobs, tmp_path)
    assert (one.seconds, one.unknown) == (None, ("kernel=nki_rope",))
    assert expectation(sweep, one) == "expected time and cost: unknown, no earlier run of kernel=nki_rope here"
    without_price = two_arms(tmp_path)
    leave_run(without_price.jobs[1], without_price, seconds=30.0)  # the price changes no run
    both = expect(sweep, sweep.jobs, tmp_path)
    assert (both.seconds, both.num_runs, both.unknown) == (180.0, 4, ())
    assert both.cost == pytest.approx(1.8)
    assert expectation(sweep, both) == (
        "expected time: 3 min, expected cost: 1.80 at 36 per hour of 2026-10-20 (from 4 earlier runs)"
    )
    assert expect(sweep, sweep.jobs[:1], tmp_path).cost == pytest.approx(0.6)  # only what is left to run


def test_without_price_there_is_no_cost(tmp_path: Path) -> None:
    sweep = two_arms(tmp_path, replicates=1)
    for job in sweep.jobs:
        leave_run(job, sweep, seconds=45.0)
    assert expect(sweep, sweep.jobs, tmp_path) == Expected(seconds=90.0, cost=None, num_runs=2)


def test_words() -> None:
    assert [in_words(seconds) for seconds in (45, 99.6, 480, 6000, 12600)] == [
        "45 s",
        "100 s",
        "8 min",
        "1.7 h",
        "3.5 h",
    ]


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_order_line(tmp_path: Path) -> None:
    assert order_line(two_arms(tmp_path, replicates=3)) == "A B | B A | A B"
    assert order_line(two_arms(tmp_path, replicates=3, order="blocked")) == "A A A | B B B"
    assert order_line(two_arms(tmp_path, replicates=1)) == "A B"


def test_the_comparison_to_type(tmp_path: Path) -> None:
    sweep = two_arms(tmp_path)
    where = f"--where sweep={sweep.id} --runs {tmp_path}"
    assert comparison(sweep, sweep.arms[1]) == (
        f"python -m analysis compare --baseline kernel=baseline --candidate kernel=nki_rope {where}"
    )
    same = two_arms(tmp_path, ("baseline", "baseline"))
    assert f"--baseline sweep={same.id} --candidate sweep={same.id} --runs" in comparison(same, same.arms[1])


# -- settings ---------------------------------------------------------------------------------------------------------


def test_settings_on_the_command_line() -> None:
    assert settings_override("replicates=4") == "hydra.sweeper.replicates=4"
    assert settings_override("+sweep.order=blocked") == "hydra.sweeper.order=blocked"
    assert settings_override("train.steps=4") is None
    assert settings_override("replicate=4") is None
    with pytest.raises(ConfigError, match=r"no key sweep\.mixed: sweep has replicates, order, start_seed"):
        settings_override("sweep.mixed=true")


WRONG = {
    "replicate": ({}, ("replicate=3",), "replicate= is set by the sweep"),
    "sweep": ({}, ("sweep=x",), "sweep= is set by the sweep"),
    "order": ({"order": "abab"}, (), "sweep.order=abab: one of interleaved, blocked was expected"),
    "none": ({"replicates": 0}, (), "replicates=0 of 2 arms: at least 1 was expected"),
    "impossible arm": ({}, ("train.steps=0",), "kernel=baseline: train.steps=0: at least 1 was expected"),
}


@pytest.mark.parametrize(("settings", "more", "message"), WRONG.values(), ids=WRONG.keys())
def test_contradictions_are_refused_before_anything_runs(
    settings: dict, more: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        two_arms(tmp_path, ("baseline", "nki_rope"), *more, **settings)
    assert message in str(refused.value)
