"""How the nodes of a job know of each other: small files in the shared directory of runs, and no locks.

``.jobs/<key>.json`` says which run a job's pilot is, for the other nodes and for the job's next start after a requeue.
``<run>/nodes/<rank>.json`` is a node's sign of life. Each file has one writer. A sign of life is written over in place,
in one write of one size, because NFS asks its server for a file's content when it is opened, but remembers for up to a
minute which file a name stands for.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness.manifest import config_hash
from harness.nodes import Place
from harness.plan import Plan
from harness.rundir import RunDir

JOBS, NODES = ".jobs", "nodes"
INDEX = "PILOT_JOB_INDEX"
"""Environment variable by which the queue tells a pilot its place in the job."""
BEAT_S = 1.0
POLL_S = 0.2
SIZE = 1024
"""Bytes of a sign of life."""
STARTING, TRAINING, ENDED = "starting", "training", "ended"


# -- which run is this job's ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """What node 0 says to the others about the run of this start."""

    run: str
    """EXPERIMENT/RUN_ID below the directory of runs."""
    config_hash: str
    rdzv_id: str
    """The start that this is about; for Slurm it ends with the number of requeues."""
    restarts: int = 0
    attempt: int = 1
    endpoint: str = ""
    root_comm: str = ""
    ready: bool = False
    """Whether the run is prepared, so that the others can start too."""
    node: str = ""
    index: int | None = None
    """Which of the pilots that its Slurm job runs, where the queue started it."""


def index_in_job() -> int | None:
    text = os.environ.get(INDEX, "")
    return int(text) if text.isdigit() else None


def job_key(plan: Plan) -> str | None:
    """Name of this pilot's record: the same on all nodes and after a requeue. None for a pilot that needs none."""
    place = plan.place
    if place.job is not None:
        parts = [place.job.job_id, place.job.step_id or "batch"]
        index = index_in_job()
        return "-".join([*parts, *([] if index is None else [str(index)]), config_hash(plan)[:8]])
    return re.sub(r"[^\w.+-]", "_", place.rdzv_id) if place.several else None


def record_file(runs: Path, key: str) -> Path:
    return runs / JOBS / f"{key}.json"


def read_record(runs: Path, key: str) -> JobRecord | None:
    try:
        value = json.loads(record_file(runs, key).read_text())
        return JobRecord(**{name: item for name, item in value.items() if name in JobRecord.__dataclass_fields__})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def write_record(runs: Path, key: str, record: JobRecord) -> None:
    file = record_file(runs, key)
    file.parent.mkdir(parents=True, exist_ok=True)
    RunDir(file.parent).write_json(file.name, asdict(record))


def drop_record(runs: Path, key: str) -> None:
    record_file(runs, key).unlink(missing_ok=True)


def records_of(runs: Path, job_id: str) -> list[JobRecord]:
    """What is known of a Slurm job's pilots."""
    keys = [file.stem for file in (runs / JOBS).glob(f"{job_id}-*.json")]
    return [record for key in sorted(keys) if (record := read_record(runs, key)) is not None]


# -- signs of life ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NodeState:
    """What a node says of itself. ``reason`` is why its part failed, ``severity`` how sure that is the cause."""

    rank: int
    name: str = ""
    beat: int = 0
    state: str = STARTING
    exit_code: int | None = None
    reason: str = ""
    severity: int = 0
    """3: a rank was killed, 2: a rank raised an error, 1: anything else, 0: nothing failed."""
    failed_at: float = 0.0
    """Unix time of the error, where a rank left one."""
    group_rank: int | None = None
    """Which place torchrun's rendezvous gave to this node."""


class Pulse:
    """This node's sign of life, renewed by a thread."""

    def __init__(self, run: RunDir, state: NodeState) -> None:
        self._path = run.file(NODES) / f"{state.rank}.json"
        self._state, self._lock, self._stop = state, threading.Lock(), threading.Event()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(b"")
        self.say()
        self._thread = threading.Thread(target=self._run, daemon=True, name="pulse")
        self._thread.start()

    def say(self, **news: object) -> None:
        """Write now, with ``news`` (fields of :class:`NodeState`); a disk that is full or gone is no reason to end."""
        with self._lock:
            self._state = replace(self._state, beat=self._state.beat + 1, **news)
            text = _text(self._state)
            with contextlib.suppress(OSError):
                descriptor = os.open(self._path, os.O_WRONLY)
                try:
                    os.pwrite(descriptor, text, 0)
                finally:
                    os.close(descriptor)

    def stop(self, **news: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5.0)
        self.say(**news)

    def _run(self) -> None:
        while not self._stop.wait(BEAT_S):
            self.say()


def _text(state: NodeState) -> bytes:
    text = json.dumps(asdict(state))
    while len(text.encode()) >= SIZE:
        state = replace(state, reason=state.reason[: len(state.reason) // 2])
        text = json.dumps(asdict(state))
    return text.encode().ljust(SIZE - 1) + b"\n"


def read_state(run: RunDir, rank: int) -> NodeState | None:
    """What a node said last; None where it has said nothing yet, or is saying it now."""
    value = run.read_json(f"{NODES}/{rank}.json")
    if not isinstance(value, dict):
        return None
    return NodeState(**{key: item for key, item in value.items() if key in NodeState.__dataclass_fields__})


class Others:
    """The other nodes of a job as one of them sees them, by its own clock."""

    def __init__(self, run: RunDir, place: Place, *, lost_s: float, join_s: float, only: Sequence[int] = ()) -> None:
        self.run, self.place = run, place
        self.states: dict[int, NodeState] = {}
        self._lost_s, self._join_s = lost_s, join_s
        self._started = time.monotonic()
        self._changed: dict[int, float] = {}
        self._ranks = [rank for rank in (only or range(place.num_nodes)) if rank != place.rank]

    def look(self) -> None:
        for rank in self._ranks:
            state = read_state(self.run, rank)
            if state is not None and state != self.states.get(rank):
                self.states[rank], self._changed[rank] = state, time.monotonic()

    def lost(self) -> list[str]:
        """Of nodes that have not ended and show no sign of life: who, and for how long."""
        now, found = time.monotonic(), []
        for rank in self._ranks:
            state = self.states.get(rank)
            if state is not None and state.state == ENDED:
                continue
            limit = self._join_s if state is None else self._lost_s
            quiet = now - self._changed.get(rank, self._started)
            if quiet > limit:
                what = "never appeared" if state is None else "is lost: no sign of life"
                found.append(f"{self.name_of(rank)} {what} for {quiet:.0f} s")
        return found

    def failed(self) -> list[NodeState]:
        """Nodes whose part has failed, the likeliest cause first."""
        bad = [state for state in self.states.values() if state.state == ENDED and state.severity]
        return sorted(bad, key=lambda state: (-state.severity, state.failed_at))

    def name_of(self, rank: int) -> str:
        state = self.states.get(rank)
        return f"node {rank} ({state.name})" if state is not None and state.name else self.place.name_of(rank)

    def missing(self) -> list[int]:
        """Nodes that have neither ended nor are lost yet."""
        quiet = {rank for rank in self._ranks if self._is_lost(rank)}
        return [
            rank
            for rank in self._ranks
            if rank not in quiet and (rank not in self.states or self.states[rank].state != ENDED)
        ]

    def _is_lost(self, rank: int) -> bool:
        limit = self._join_s if rank not in self.states else self._lost_s
        return time.monotonic() - self._changed.get(rank, self._started) > limit

    def wait_for_end(self, seconds: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Until every other node has said how it ended, or is lost, or ``seconds`` have passed."""
        deadline = time.monotonic() + seconds
        self.look()
        while self.missing() and time.monotonic() < deadline and not stop():
            time.sleep(POLL_S)
            self.look()
