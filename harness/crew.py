"""Node 0's side of a pilot on several nodes: it says where the run is, looks after the others, and finds who failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from harness import slurm
from harness.blame import OTHER, Blame, blame, named
from harness.checks import Check, judge
from harness.failure import Failure, explain
from harness.launch import environment_of, processes_of
from harness.logs import Event
from harness.meeting import ENDED, TRAINING, NodeState, Others, Pulse
from harness.training import rank_logs
from harness.watch import End

if TYPE_CHECKING:
    from harness.nodes import Place
    from harness.plan import Plan
    from harness.rundir import RunDir

OWN_END_S = 10.0
"""How long after a node has reported its failure the training here may take to end by itself."""
LOOK_FOR_RANKS_S = 5.0
REPORTS_S = 15.0
"""How long the other nodes of a training that ended well may take to say so."""


class Crew:
    """The nodes of one job, from node 0."""

    def __init__(self, plan: Plan, run: RunDir, place: Place) -> None:
        launch = plan.config.launch
        self.run, self.place = run, place
        self._lost_s = launch.node_lost_s
        self.name = place.name_of(0)
        self._others = Others(run, place, lost_s=launch.node_lost_s, join_s=launch.join_s)
        name = place.names[0] if place.names else place.local_addr
        self._pulse = Pulse(run, NodeState(rank=0, name=name))
        self._finder = RankFinder(run.run_id)
        self._reported: float | None = None

    def look(self) -> str:
        """Called every second while training: why it has to end, if it has to."""
        if self._finder.group_rank is None and self._finder.look():
            self._pulse.say(state=TRAINING, group_rank=self._finder.group_rank)
        self._others.look()
        if lost := self._others.lost():
            return lost[0]
        if failed := self._others.failed():
            self._reported = self._reported or time.monotonic()
            if time.monotonic() - self._reported > OWN_END_S:
                return f"{self._others.name_of(failed[0].rank)}: {failed[0].reason}"
        return ""

    def failure(self, end: End, events: Sequence[Event], own: Failure, interrupted: Callable[[], bool]) -> Failure:
        """Which node's failure it was, with that node in the reason."""
        if end.cause:
            return own
        self._others.wait_for_end(self._lost_s + 5.0, interrupted)
        if lost := self._others.lost():
            return Failure(f"{lost[0]}{self._slurm_says()}", own.detail)
        why, node = slurm.why_signalled(self.place.job) if interrupted() and self.place.job else ("", "")
        if node:
            return Failure(f"{name_in_slurm(self.place, node)} is lost: {why}", own.detail)
        here = blame(True, events, rank_logs(self.run.path, 0))
        failed = self._others.failed()
        if failed and Blame(severity=failed[0].severity, at=failed[0].failed_at).key < here.key:
            return Failure(f"{self._others.name_of(failed[0].rank)}: {failed[0].reason}", own.detail)
        silent = [self._others.name_of(rank) for rank in self._others.missing()]
        if here.severity <= OTHER and silent:
            return Failure(f"{silent[0]} has not said how it ended; {self.name}: {own.reason}", own.detail)
        return named(self.name, own)

    def checks(self, ended_well: bool) -> list[Check]:
        """Every node has to have ended well, and rank 0 to have run on this node."""
        if ended_well:
            self._others.wait_for_end(REPORTS_S)
        else:
            self._others.look()
        states = [self._others.states.get(rank) for rank in range(1, self.place.num_nodes)]
        parts = [f"{self.name} records"]
        for rank, state in enumerate(states, start=1):
            ended = state is not None and state.state == ENDED
            said = f"exit code {state.exit_code}" if ended and state else "has not said how it ended"
            parts.append(f"{self._others.name_of(rank)} {said}")
        passed = all(state is not None and state.state == ENDED and state.exit_code == 0 for state in states)
        checks = [judge("nodes", passed, ", ".join(parts), float(self.place.num_nodes))]
        if (found := self._finder.group_rank) is not None:
            checks.append(judge("recording_node", found == 0, f"torchrun made this node number {found}", float(found)))
        return checks

    def close(self) -> None:
        """Tell the others that the run is over; a second call does nothing more."""
        self._pulse.stop(state=ENDED)

    def _slurm_says(self) -> str:
        bad = slurm.bad_nodes(self.place.job.nodes) if self.place.job else {}
        return f" (Slurm says {', '.join(f'{name} {state}' for name, state in bad.items())})" if bad else ""


def name_in_slurm(place: Place, node: str) -> str:
    return place.name_of(place.names.index(node)) if node in place.names else f"node {node}"


def why_interrupted(place: Place, signal_name: str) -> tuple[str, bool]:
    """The reason of a run that a signal ended, and whether Slurm sent it because a node has failed."""
    why, node = slurm.why_signalled(place.job) if place.job else ("", "")
    if node:
        return f"{name_in_slurm(place, node)} is lost: {why}", True
    if why == slurm.IN_WORDS["NODE_FAIL"]:
        return why, True
    return f"{signal_name}{f' ({why})' if why else ''}", False


class RankFinder:
    """Which number torchrun's rendezvous gave to this node, from the environment of a rank."""

    def __init__(self, run_id: str) -> None:
        self.group_rank: int | None = None
        self._run_id, self._next = run_id, 0.0

    def look(self) -> bool:
        """Whether it has just been found; looks seldom, since it reads all processes of the host."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + LOOK_FOR_RANKS_S
        for pid in processes_of(self._run_id):
            found = environment_of(pid).get("GROUP_RANK", "")
            if found.isdigit():
                self.group_rank = int(found)
                return True
        return False


def report(end: End, events: Sequence[Event], run: RunDir, rank: int, *, told_to: bool) -> NodeState:
    """What another node than 0 says about its end; ``told_to``: it was ended on purpose, so nothing failed here."""
    logs = rank_logs(run.path, rank)
    failed = not told_to and end.interrupt is None and (end.exit_code != 0 or bool(end.cause))
    state = NodeState(rank=rank, state=ENDED, exit_code=end.exit_code)
    if not failed:
        return state
    found = blame(failed, events, logs)
    at = found.at if found.at != float("inf") else 0.0
    return replace(state, reason=explain(end, events, logs).reason, severity=found.severity, failed_at=at)
