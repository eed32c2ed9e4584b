"""The story of a node that only launches: meet node 0, start the same training, keep its log beside, report the end."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness import rundir
from harness.attempts import DONE, decide
from harness.crew import RankFinder, report
from harness.interrupts import Interrupts
from harness.launch import TrainingProcesses
from harness.meeting import (
    ENDED,
    POLL_S,
    TRAINING,
    JobRecord,
    NodeState,
    Others,
    Pulse,
    job_key,
    read_record,
    read_state,
)
from harness.pilot import Outcome
from harness.plan import ConfigError, Plan
from harness.recorder import Recorder
from harness.rundir import RunDir, now
from harness.scratch import Scratch
from harness.titan.spec import TitanSpec
from harness.training import SPEC_FILE, command, environment
from harness.watch import End, Watchdog, watch

if TYPE_CHECKING:
    from rich.console import Console

    from harness.nodes import Place

NEVER_S = 1e9
END_S = 10.0
"""How long the training here may go on after node 0 has ended the run."""


def run_other_node(plan: Plan, console: Console, interrupts: Interrupts) -> Outcome:
    """Take part in the run that node 0 records.

    Raises:
        ConfigError: node 0 did not appear in time.
        KeyboardInterrupt: a signal came before anything was started.
    """
    place = plan.place
    console.print(f"{place.name_of(place.rank)} of {place.num_nodes}: waiting for node 0", markup=False)
    record = _meet(plan)
    run = RunDir(Path(plan.config.runs) / record.run)
    if decide(plan, record) == DONE:
        return Outcome(run, rundir.FINISHED, "", 0, plan.name)
    place = replace(place, rdzv_id=record.rdzv_id, rdzv_endpoint=record.endpoint, root_comm=record.root_comm)
    name = place.names[place.rank] if place.names else place.local_addr
    pulse = Pulse(run, NodeState(rank=place.rank, name=name))
    final = NodeState(rank=place.rank, state=ENDED)
    try:
        if why := _wait_until_ready(plan, run):
            console.print(f"nothing to do here: {why}", markup=False)
            return Outcome(run, "not needed", why, 0 if interrupts.exit_code == 0 else interrupts.exit_code, plan.name)
        interrupts.only_note()
        final, end = _train(plan, place, run, pulse, interrupts)
    finally:
        news = {key: value for key, value in asdict(final).items() if key not in ("rank", "name", "beat", "group_rank")}
        pulse.stop(**news)
    code = interrupts.exit_code or (0 if end.exit_code == 0 else 1)
    text = final.reason or end.cause or ("ended" if code == 0 else f"exit code {end.exit_code}")
    console.print(f"{place.name_of(place.rank)}: {text}; log {run.file(log_name(place.rank))}", markup=False)
    return Outcome(run, rundir.FINISHED if code == 0 else rundir.FAILED, final.reason, code, plan.name)


def log_name(rank: int) -> str:
    return f"train.node{rank}.log"


def _meet(plan: Plan) -> JobRecord:
    """The record of this very start, written by a node 0 that is alive."""
    runs, key, place = Path(plan.config.runs), job_key(plan), plan.place
    assert key is not None
    deadline, first = time.monotonic() + plan.config.launch.join_s, {}
    while time.monotonic() < deadline:
        record = read_record(runs, key)
        if record is not None:
            if decide(plan, record) == DONE:
                return record
            state = read_state(RunDir(runs / record.run), 0) if _of_this_start(record, place) else None
            if state is not None:
                beat = first.setdefault(record.run, state.beat)
                if state.beat > beat or state.state == ENDED:  # an old record has no pulse, or one that has ended
                    return record
        time.sleep(POLL_S)
    raise ConfigError(
        f"node 0 did not say within {plan.config.launch.join_s:.0f} s which run this is ({runs}/.jobs/{key}.json): "
        "is runs= on a file system that all nodes share, and has node 0 been started?"
    )


def _of_this_start(record: JobRecord, place: Place) -> bool:
    return record.restarts == (place.job.restarts if place.job else 0) and record.rdzv_id == place.rdzv_id


def _wait_until_ready(plan: Plan, run: RunDir) -> str:
    """Until node 0 has prepared the run; why there is nothing to start, if there is not."""
    runs, key = Path(plan.config.runs), job_key(plan)
    others = _node_0(plan, run)
    while True:
        record = read_record(runs, key or "")
        if record is not None and record.ready and record.run == f"{run.experiment}/{run.run_id}":
            return ""
        others.look()
        if (state := others.states.get(0)) is not None and state.state == ENDED:
            return "node 0 has ended the run before the training"
        if lost := others.lost():
            return lost[0]
        if record is None or not run.path.exists():
            return "node 0 has given up"
        time.sleep(POLL_S)


def _node_0(plan: Plan, run: RunDir) -> Others:
    launch = plan.config.launch
    return Others(run, plan.place, lost_s=launch.node_lost_s, join_s=launch.join_s, only=(0,))


def _train(plan: Plan, place: Place, run: RunDir, pulse: Pulse, interrupts: Interrupts) -> tuple[NodeState, End]:
    launch, rank = plan.config.launch, place.rank
    scratch = Scratch(launch.scratch, run)
    spec = TitanSpec.from_json(run.file(SPEC_FILE).read_text(encoding="utf-8"))
    words = launch.command or command(plan, spec, run.path, place, scratch.rank_logs(rank))
    processes = TrainingProcesses(
        words,
        run_id=f"{run.run_id}.node{rank}",
        env={"PILOT_NODE_RANK": str(rank), **environment(plan, run.path, place)},
        num_ranks=plan.local_ranks,
    )
    recorder = Recorder(run, node=rank, logs=scratch.folder)
    limits = replace(launch, stall_s=NEVER_S, compile_stall_s=NEVER_S, on_nonfinite="warn")  # node 0 decides that
    watchdog = Watchdog(limits, interrupts, num_steps=plan.config.train.steps)
    look = _Lookout(plan, run, pulse)
    end = watch(processes, recorder, _Quiet(), watchdog, look)
    scratch.collect()
    if look.node_0_lost:
        _mark_lost(run, look.node_0_lost)
    return report(end, recorder.events, run, rank, told_to=bool(look.told)), end


class _Lookout:
    """What is looked after every second: whether node 0 is alive and still wants this."""

    def __init__(self, plan: Plan, run: RunDir, pulse: Pulse) -> None:
        self.told, self.node_0_lost = "", ""
        self._others, self._pulse = _node_0(plan, run), pulse
        self._finder = RankFinder(f"{run.run_id}.node{plan.place.rank}")
        self._ended_at: float | None = None

    def __call__(self) -> str:
        if self._finder.group_rank is None and self._finder.look():
            self._pulse.say(state=TRAINING, group_rank=self._finder.group_rank)
        self._others.look()
        if lost := self._others.lost():
            self.told = self.node_0_lost = lost[0]
        elif (state := self._others.states.get(0)) is not None and state.state == ENDED:
            self._ended_at = self._ended_at or time.monotonic()
            if time.monotonic() - self._ended_at > END_S:
                self.told = "node 0 has ended the run"
        return self.told


def _mark_lost(run: RunDir, why: str) -> None:
    """Nobody else will say what became of the run: whoever is left does, all of them the same."""
    status = run.status()
    if status is not None and status.state == rundir.RUNNING:
        with contextlib.suppress(OSError):
            run.write_status(replace(status, state=rundir.FAILED, reason=why, ended=now(), exit_code=1))


class _Quiet:
    """Node 0 shows how the training gets on."""

    def phase(self, name: str) -> None:
        if os.environ.get("PILOT_VERBOSE"):
            print(name, flush=True)

    def step(self, step: int, loss: float | None, tps_per_rank: float | None) -> None:
        pass
