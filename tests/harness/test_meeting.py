"""Nodes that know of each other through files, requeued runs, and whose failure it was (no torch, no Slurm)."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness import rundir, slurm
from harness.attempts import AGAIN, DONE, NEW, announce, decide, note_start, open_run
from harness.blame import KILLED, NOTHING, OTHER, RAISED, blame
from harness.checks import initial_weights, steps_logged
from harness.crew import Crew, why_interrupted
from harness.failure import Failure
from harness.logs import Event, Row
from harness.manifest import config_hash
from harness.meeting import ENDED, INDEX, SIZE, NodeState, Others, Pulse, job_key, read_record, read_state
from harness.nodes import Place
from harness.plan import ConfigError, Plan, make_plan
from harness.recorder import Recorder
from harness.repair import repair
from harness.rundir import RunDir, own_status
from harness.schema import PilotConfig, PlatformConfig
from harness.scratch import Scratch
from harness.slurm import Allocation, JobState
from harness.watch import End

PLACE = Place(num_nodes=3, names=("a", "b", "c"), rdzv_id="12.0.0", local_addr="a")


def job(restarts: int = 0) -> Allocation:
    return Allocation(job_id="12", step_id="0", restarts=restarts, nodes=("a",), node="a", num_tasks=1)


def plan(runs: Path, place: Place = PLACE) -> Plan:
    from harness.paths import load_path

    config = PilotConfig(
        path=load_path("native_4b"), platform=PlatformConfig(name="cpu", device="cpu", num_ranks=1), runs=str(runs)
    )
    return replace(make_plan(config), place=place)


def others(run: RunDir, lost_s: float = 60.0) -> Others:
    return Others(run, PLACE, lost_s=lost_s, join_s=60.0)


def say(run: RunDir, rank: int, **facts: object) -> None:
    run.file("nodes").mkdir(exist_ok=True)
    run.write_json(f"nodes/{rank}.json", {"rank": rank, "name": "abc"[rank], "beat": 1} | facts)


def test_a_sign_of_life_is_written_over_in_place_in_one_size(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    pulse = Pulse(run, NodeState(rank=1, name="b"))
    file = run.file("nodes/1.json")
    before = file.stat().st_ino
    pulse.stop(state=ENDED, exit_code=1, reason="x" * 5000, severity=3)
    assert (file.stat().st_ino, file.stat().st_size) == (before, SIZE)
    state = read_state(run, 1)
    assert state is not None
    assert (state.name, state.state, state.exit_code, state.severity) == ("b", ENDED, 1, 3)
    assert state.beat >= 2
    assert read_state(run, 2) is None


def test_a_node_is_lost_when_it_says_nothing_new(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    say(run, 1)
    say(run, 2, state=ENDED, exit_code=0)
    seen = others(run, lost_s=0.2)
    seen.look()
    assert (seen.lost(), seen.missing()) == ([], [1])
    time.sleep(0.3)
    seen.look()
    assert seen.missing() == []  # lost, so nothing is to be waited for
    (lost,) = seen.lost()
    assert lost.startswith("node 1 (b) is lost: no sign of life for ")
    say(run, 1, beat=2)
    seen.look()
    assert seen.lost() == []


def test_a_node_that_never_appears_is_given_the_time_to_join(tmp_path: Path) -> None:
    seen = Others(RunDir(tmp_path), PLACE, lost_s=0.0, join_s=60.0)
    assert seen.lost() == []
    late = Others(RunDir(tmp_path), PLACE, lost_s=60.0, join_s=-1.0)
    assert [text.split(" for ")[0] for text in late.lost()] == [
        "node 1 (b) never appeared",
        "node 2 (c) never appeared",
    ]


# -- whose failure was it ---------------------------------------------------------------------------------------------


def test_blame(tmp_path: Path) -> None:
    logs = tmp_path / "ranks.node1"
    assert blame(False, [], logs).severity == NOTHING
    assert blame(True, [], logs).severity == OTHER
    killed = Event(kind="child_failed", line=1, time=None, data={"local_rank": 0, "exitcode": -9, "pid": 5})
    terminated = replace(killed, data={"local_rank": 0, "exitcode": -15, "pid": 5})
    assert blame(True, [killed], logs).severity == KILLED
    assert blame(True, [terminated], logs).severity == OTHER
    file = logs / "x" / "attempt_0" / "0" / "error.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"message": {"message": "E", "extraInfo": {"timestamp": "1700000000"}}}))
    found = blame(True, [terminated], logs)
    assert (found.severity, found.at) == (RAISED, 1_700_000_000.0)
    assert found.key < replace(found, at=found.at + 1).key  # the earlier one is likelier
    assert blame(True, [killed], logs).key < found.key


CASES = {
    "a rank elsewhere was killed": (
        [
            (1, {"severity": 3, "reason": "rank 0: killed by SIGKILL", "exit_code": 1}),
            (2, {"severity": 2, "exit_code": 1}),
        ],
        "node 1 (b): rank 0: killed by SIGKILL",
    ),
    "an earlier error elsewhere": (
        [
            (1, {"severity": 2, "failed_at": 50.0, "reason": "rank 1: late"}),
            (2, {"severity": 2, "failed_at": 9.0, "reason": "early"}),
        ],
        "node 2 (c): early",
    ),
    "nothing worse elsewhere": ([(1, {"severity": 1, "reason": "torchrun"}), (2, {})], "node 0 (a): rank 0: own error"),
}


@pytest.mark.parametrize(("states", "reason"), CASES.values(), ids=CASES.keys())
def test_the_node_that_failed_first_is_named(states: list, reason: str, tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    crew = Crew(plan(tmp_path), run, PLACE)
    own = run.file("ranks/x/attempt_0/0/error.json")
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps({"message": {"message": "own error", "extraInfo": {"timestamp": "20"}}}))
    for rank, facts in states:
        say(run, rank, state=ENDED, **facts)
    found = crew.failure(End(exit_code=1), [], Failure("rank 0: own error"), lambda: False)
    crew.close()
    assert found.reason == reason


def test_a_cause_of_the_harness_needs_no_blame(tmp_path: Path) -> None:
    crew = Crew(plan(tmp_path), RunDir(tmp_path), PLACE)
    own = Failure("stalled at step 3")
    assert crew.failure(End(exit_code=-15, cause="stalled at step 3"), [], own, lambda: False) == own
    crew.close()


def test_every_node_has_to_end_well(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    crew = Crew(plan(tmp_path), run, PLACE)
    say(run, 1, state=ENDED, exit_code=0)
    say(run, 2, state=ENDED, exit_code=1)
    (bad,) = crew.checks(ended_well=True)
    say(run, 2, state=ENDED, exit_code=0, beat=2)
    (good,) = crew.checks(ended_well=True)
    crew.close()
    assert (bad.verdict, bad.evidence) == ("fail", "node 0 (a) records, node 1 (b) exit code 0, node 2 (c) exit code 1")
    assert (good.verdict, good.value) == ("pass", 3.0)


WHY = {
    "JobState=COMPLETING Reason=None Restarts=0 ExitCode=0:15": ("SIGTERM (the job was cancelled)", False),
    "JobState=COMPLETING Reason=TimeLimit Restarts=0 ExitCode=0:15": ("SIGTERM (the job's time limit)", False),
    "JobState=COMPLETING Reason=None Restarts=1 ExitCode=0:0": ("SIGTERM (the job was requeued)", False),
    "JobState=RUNNING Reason=None Restarts=0 ExitCode=0:0": ("SIGTERM", False),
    "JobState=NODE_FAIL Reason=NodeDown Restarts=0 ExitCode=0:0": ("a node of the job failed", True),
    "JobState=PREEMPTED Reason=None Restarts=0 ExitCode=0:0": ("SIGTERM (the job was preempted)", False),
    "": ("SIGTERM", False),
}


@pytest.mark.parametrize(("said", "expected"), WHY.items(), ids=WHY.keys())
def test_why_a_signal_came(said: str, expected: tuple[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "ask", lambda *command, errors=False: said if command[2] == "job" else "")
    assert why_interrupted(replace(PLACE, job=job()), "SIGTERM") == expected
    assert why_interrupted(PLACE, "SIGTERM") == ("SIGTERM", False)


def test_a_node_that_slurm_has_given_up_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = "NodeName=a State=IDLE\nNodeName=b State=DOWN*\n"
    monkeypatch.setattr(slurm, "ask", lambda *command, errors=False: nodes)
    expected = ("node 1 (b) is lost: Slurm says DOWN* of it", True)
    assert why_interrupted(replace(PLACE, job=replace(job(), nodes=("a", "b"))), "SIGTERM") == expected


def test_a_signal_before_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "JobState=RUNNING Reason=None Restarts=0 ExitCode=0:0"
    monkeypatch.setattr(slurm, "ask", lambda *command, errors=False: said if command[2] == "job" else "")
    for left, words in ((50, " (the job's time limit)"), (5000, "")):
        limited = replace(job(), ends_at=time.time() + left)
        assert why_interrupted(replace(PLACE, job=limited), "SIGTERM") == (f"SIGTERM{words}", False)


# -- the same run again -----------------------------------------------------------------------------------------------


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


# -- runs on other machines -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "bad", "expected"),
    [
        ("RUNNING", {}, "running"),
        (None, {}, "running"),
        ("CANCELLED", {}, "killed: Slurm job 12 is over (CANCELLED), its pilot ended without a word while training"),
        ("NODE_FAIL", {"b": "DOWN*"}, "failed: Slurm job 12 is over (NODE_FAIL, b is DOWN*), its pilot ended without"),
    ],
)
def test_a_run_elsewhere_is_over_when_slurm_says_so(
    state: str | None, bad: dict, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir.create(tmp_path, "e", "p")
    run.write_status(replace(own_status(rundir.RUNNING, phase="training", job="12"), host="elsewhere"))
    answer = None if state is None else JobState(job_id="12", state=state, nodes=("a", "b"))
    monkeypatch.setattr(slurm, "job_state", lambda job_id: answer)
    monkeypatch.setattr(slurm, "bad_nodes", lambda names: bad)
    repair(run)
    status = run.status()
    assert status is not None
    assert f"{status.state}: {status.reason}".removesuffix(": ").startswith(expected)


# -- scratch ----------------------------------------------------------------------------------------------------------


def test_scratch_is_copied_to_the_run_and_removed(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "runs", "e", "p")
    scratch = Scratch(str(tmp_path / "local"), run)
    logs = scratch.rank_logs(1)
    assert logs == tmp_path / "local" / run.run_id / "ranks.node1"
    logs.mkdir()
    (logs / "3.log").write_text("last words")
    scratch.collect()
    assert run.file("ranks.node1/3.log").read_text() == "last words"
    assert list((tmp_path / "local").iterdir()) == []
    without = Scratch(None, run)
    assert (without.folder, without.rank_logs(0)) == (run.path, run.file("ranks"))
    without.collect()
    assert run.file("ranks.node1/3.log").exists()
