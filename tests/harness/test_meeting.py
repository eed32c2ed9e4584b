"""Nodes that know of each other through files, and whose failure it was (no torch, no Slurm)."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness import rundir, slurm
from harness.blame import KILLED, NOTHING, OTHER, RAISED, blame
from harness.crew import Crew, why_interrupted
from harness.failure import Failure
from harness.logs import Event
from harness.meeting import ENDED, SIZE, NodeState, Others, Pulse, read_state
from harness.nodes import Place
from harness.plan import Plan, make_plan
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
