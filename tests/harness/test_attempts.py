"""The same run again: a requeued job takes up its run (no torch, no Slurm)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness import rundir
from harness.attempts import AGAIN, DONE, NEW, announce, decide, note_start, open_run
from harness.checks import initial_weights, steps_logged
from harness.logs import Event, Row
from harness.manifest import config_hash
from harness.meeting import INDEX, job_key, read_record
from harness.nodes import Place
from harness.plan import ConfigError, Plan, make_plan
from harness.recorder import Recorder
from harness.rundir import RunDir, own_status
from tests.harness.test_meeting import job, plan


def started(runs: Path, restarts: int = 0) -> tuple[Plan, RunDir]:
    """A run of a job, as its pilot leaves it after its start."""
    first = plan(runs, Place(job=job(restarts)))
    opened = open_run(first)
    opened.run.write_status(own_status(rundir.RUNNING, attempt=opened.attempt, job="12"))
    announce(first, opened, first.place, ready=True)
    return first, opened.run


def test_a_requeued_job_takes_up_its_run(tmp_path: Path) -> None:
    _, run = started(tmp_path)
    run.file("rows.jsonl").write_text('{"step": 1}\n')
    run.file("dump").mkdir()
    run.file("dump/checkpoint").write_text("state")
    again = open_run(plan(tmp_path, Place(job=job(1))))
    assert (again.run.path, again.attempt, again.finished) == (run.path, 2, False)
    assert run.file("attempts/1/rows.jsonl").read_text() == '{"step": 1}\n'
    assert list(run.rows()) == []
    assert run.file("dump/checkpoint").read_text() == "state"  # the training goes on from it
    assert run.status() is not None
    assert again.initial.resumed_step is None  # none that torchtitan would take


def leave(folder: Path, step: int, names: bytes = b"optimizer dataloader.dp_rank_0") -> None:
    (folder / f"step-{step}").mkdir(parents=True)
    (folder / f"step-{step}" / ".metadata").write_bytes(names)


def test_a_requeued_job_goes_on_from_its_own_last_full_step(tmp_path: Path) -> None:
    """And not from the model alone, which the attempt before saved last and torchtitan cannot go on from."""
    _, run = started(tmp_path)
    folder = run.path / "dump" / "checkpoint"
    leave(folder, 3)
    leave(folder, 10, b"model")
    requeued = plan(tmp_path, Place(job=job(1)))
    again = open_run(requeued)
    assert (again.attempt, again.initial.resumed_step, again.initial.resumed_from) == (2, 3, folder)
    assert again.aside == ("step-10 is now attempt-1-of-10: the model alone",)
    assert sorted(place.name for place in folder.iterdir()) == ["attempt-1-of-10", "step-3"]
    going_on = replace(requeued, initial=again.initial)
    assert (job_key(going_on), config_hash(going_on)) == (job_key(requeued), config_hash(requeued))
    rows = [Row(kind="train", segment=0, step=step, loss=7.0) for step in range(4, 11)]
    assert steps_logged(going_on, rows).verdict == "pass"
    assert steps_logged(going_on, rows).evidence == "7 of 7 steps that are logged"
    assert steps_logged(requeued, rows).verdict == "fail"
    events = [Event(kind="checkpoint_load", line=1, data={"path": f"{folder}/step-3"})]
    assert initial_weights(going_on, events).verdict == "pass"
    assert initial_weights(requeued, events).verdict == "fail"
    recorder = Recorder(run)
    note_start(recorder, going_on, again)
    recorder.close()
    assert [event["data"]["message"] for event in run.events()] == [again.aside[0]]


def test_checkpoints_elsewhere_are_a_requeued_job_s_own_only_in_its_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flagged(restarts: int) -> Plan:
        monkeypatch.setattr("harness.plan.find_place", lambda platform: Place(job=job(restarts)))
        config = plan(tmp_path).config
        options = ["--checkpoint.enable", "--dump_folder", str(tmp_path / "elsewhere")]
        return make_plan(replace(config, train=replace(config.train, flags=options)))

    first = flagged(0)
    opened = open_run(first)
    opened.run.write_status(own_status(rundir.RUNNING, job="12"))
    announce(first, opened, first.place, ready=True)
    leave(tmp_path / "elsewhere" / "checkpoint", 5)
    again = open_run(flagged(1))
    assert (again.run.path, again.attempt, again.initial.resumed_step) == (opened.run.path, 2, 5)
    opened.run.write_status(own_status(rundir.FINISHED, exit_code=0))  # now a requeued job begins a new run
    with pytest.raises(ConfigError, match=r"already holds checkpoints \(step 5\)"):
        open_run(flagged(2))
    with pytest.raises(ConfigError, match=r"already holds checkpoints \(step 5\)"):
        flagged(0)


def test_what_is_not_the_same_run(tmp_path: Path) -> None:
    first, run = started(tmp_path)
    record = read_record(tmp_path, job_key(first) or "")
    assert record is not None
    requeued = plan(tmp_path, Place(job=job(1)))
    assert decide(requeued, record) == AGAIN
    assert decide(first, record) == NEW  # not requeued: a second pilot of the same job
    assert decide(requeued, None) == decide(plan(tmp_path, Place()), record) == NEW
    assert decide(requeued, replace(record, config_hash="other")) == NEW
    run.write_status(own_status(rundir.FINISHED, exit_code=0))
    assert decide(requeued, record) == NEW  # somebody wants it anew
    assert decide(requeued, replace(record, index=0)) == DONE  # the queue repeats nothing
    run.write_status(own_status(rundir.FINISHED, exit_code=1))
    assert decide(requeued, replace(record, index=0)) == AGAIN  # checks failed: it does not count


def test_pilots_of_one_job_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = plan(tmp_path, Place(job=job()))
    keys = {job_key(here)}
    for index in ("0", "1"):
        monkeypatch.setenv(INDEX, index)
        keys.add(job_key(here))
    assert len(keys) == 3
    assert job_key(plan(tmp_path, Place())) is None
