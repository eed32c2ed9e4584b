"""What Slurm says: of the job that this process belongs to, from the environment, and of any job, from its commands.

Only squeue, scontrol and scancel are used: sacct needs an accounting database, which not every cluster has. A command
that fails, or is not there, means "not known", never "gone".
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TIMEOUT_S = 20.0
LIMIT_NEAR_S = 300.0
ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
)
"""States in which a job stays (squeue's manual, "JOB STATE CODES"); all others are on the way."""
IN_WORDS = {
    "CANCELLED": "the job was cancelled",
    "TIMEOUT": "the job's time limit",
    "DEADLINE": "the job's deadline",
    "PREEMPTED": "the job was preempted",
    "NODE_FAIL": "a node of the job failed",
    "PENDING": "the job was requeued",
    "REQUEUED": "the job was requeued",
}
BAD_NODE = re.compile(r"\b(DOWN|FAIL\w*|NOT_RESPONDING|POWERED_DOWN|REBOOT\w*)\b|[A-Z]\*")


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """The job that this process runs in, from the environment that srun and sbatch give it."""

    job_id: str
    step_id: str
    restarts: int
    """How often the job has been requeued."""
    nodes: tuple[str, ...]
    """All of the job's nodes, in Slurm's order."""
    node: str
    num_tasks: int
    ends_at: float | None = None
    """Unix time of its time limit, where Slurm tells."""


def allocation(env: Mapping[str, str] = os.environ) -> Allocation | None:
    """The job that this process runs in; None outside Slurm."""
    if not (job_id := env.get("SLURM_JOB_ID")):
        return None
    nodes = expand(env.get("SLURM_JOB_NODELIST", ""))
    node_id = env.get("SLURM_NODEID", "0")
    default = nodes[int(node_id)] if node_id.isdigit() and int(node_id) < len(nodes) else ""
    return Allocation(
        job_id=job_id,
        step_id=env.get("SLURM_STEP_ID", ""),
        restarts=int(env.get("SLURM_RESTART_COUNT") or 0),
        nodes=nodes,
        node=env.get("SLURMD_NODENAME") or default,
        num_tasks=int(env.get("SLURM_STEP_NUM_TASKS") or env.get("SLURM_NTASKS") or 1),
        ends_at=float(end) if (end := env.get("SLURM_JOB_END_TIME", "")).isdigit() else None,
    )


def expand(node_list: str) -> tuple[str, ...]:
    """``trn[1-3,07],head`` as the names it stands for, as ``scontrol show hostnames`` does.

    Raises:
        ValueError: brackets that do not match.
    """
    names: list[str] = []
    for part in re.findall(r"[^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)*(?:,|$)", node_list):
        names += _expand_one(part.rstrip(","))
    if node_list.count("[") != node_list.count("]") or (node_list and not names):
        raise ValueError(f"SLURM_JOB_NODELIST={node_list}: a list like trn[1-3],head was expected")
    return tuple(names)


def _expand_one(text: str) -> list[str]:
    if (found := re.search(r"\[([^\[\]]*)\]", text)) is None:
        return [text] if text else []
    numbers: list[str] = []
    for item in found.group(1).split(","):
        low, _, high = item.partition("-")
        numbers += [f"{number:0{len(low)}}" for number in range(int(low), int(high or low) + 1)]
    return [name for number in numbers for name in _expand_one(text[: found.start()] + number + text[found.end() :])]


# -- what its commands say ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JobState:
    """One job as Slurm sees it. ``state`` is squeue's word; ``reason`` why it waits or ended."""

    job_id: str
    state: str
    reason: str = ""
    nodes: tuple[str, ...] = ()
    name: str = ""
    elapsed: str = ""
    restarts: int = 0
    exit_code: str = ""
    """CODE:SIGNAL of the batch script."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def own_jobs() -> dict[str, JobState] | None:
    """The user's jobs that Slurm still knows, ended ones for some minutes included; None if it does not answer."""
    output = ask("squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%r|%N|%j|%M")
    if output is None:
        return None
    jobs = {}
    for line in output.splitlines():
        job_id, state, reason, nodes, name, elapsed = (line.split("|") + [""] * 6)[:6]
        names = expand(nodes) if nodes else ()
        jobs[job_id] = JobState(job_id=job_id, state=state, reason=reason, nodes=names, name=name, elapsed=elapsed)
    return jobs


def job_state(job_id: str) -> JobState | None:
    """One job, anyone's; None if Slurm does not answer. A job that it no longer knows is ``COMPLETED``, ``unknown``."""
    output = ask("scontrol", "show", "job", job_id, "--oneliner", errors=True)
    if output is None:
        return None
    if "Invalid job id" in output:
        return JobState(job_id=job_id, state="COMPLETED", reason="unknown")
    found = dict(re.findall(r"(\w+)=(\S*)", output))
    if "JobState" not in found:
        return None
    nodes = found.get("NodeList", "")
    return JobState(
        job_id=job_id,
        state=found["JobState"],
        reason=found.get("Reason", ""),
        restarts=int(found.get("Restarts") or 0),
        exit_code=found.get("ExitCode", ""),
        nodes=expand(nodes) if nodes and nodes != "(null)" else (),
    )


def bad_nodes(names: Sequence[str]) -> dict[str, str]:
    """Of these nodes those that Slurm has given up, or cannot reach, with their state."""
    output = ask("scontrol", "show", "node", ",".join(names), "--oneliner") if names else None
    states = dict(re.findall(r"^NodeName=(\S+).*?\bState=(\S+)", output or "", re.M))
    return {name: state for name, state in states.items() if BAD_NODE.search(state)}


def node_addresses(names: Sequence[str]) -> dict[str, str]:
    """By which address Slurm itself reaches nodes."""
    output = ask("scontrol", "show", "node", ",".join(names), "--oneliner") if names else None
    return dict(re.findall(r"^NodeName=(\S+).*?\bNodeAddr=(\S+)", output or "", re.M))


def why_signalled(job: Allocation) -> tuple[str, str]:
    """Why Slurm may have sent a signal to this job: words for a person, and the node that is to blame, if one is.

    While its processes are being ended, Slurm shows every job as COMPLETING; what is behind that has to be told from
    the number of restarts, the reason and the exit code (observed with 22.05).
    """
    if bad := bad_nodes(job.nodes):
        name, state = next(iter(bad.items()))
        return f"Slurm says {state} of it", name
    if (now := job_state(job.job_id)) is None:
        return "", ""
    if now.restarts > job.restarts:
        return IN_WORDS["REQUEUED"], ""
    if now.state != "COMPLETING":
        return (
            IN_WORDS["TIMEOUT"] if now.state == "RUNNING" and _limit_is_near(job) else IN_WORDS.get(now.state, "")
        ), ""
    if now.reason == "TimeLimit":
        return IN_WORDS["TIMEOUT"], ""
    return (IN_WORDS["CANCELLED"] if now.exit_code.endswith(":15") else ""), ""


def _limit_is_near(job: Allocation) -> bool:
    return job.ends_at is not None and job.ends_at - time.time() < LIMIT_NEAR_S


def cancel(job_ids: Sequence[str]) -> bool:
    """``scancel``; whether Slurm took it."""
    return not job_ids or ask("scancel", *job_ids) is not None


def available() -> bool:
    return shutil.which("squeue") is not None


def ask(*command: str, errors: bool = False) -> str | None:
    """Output of a command of Slurm's, with ``errors`` also of one that failed; None where there is no answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, start_new_session=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return done.stdout + done.stderr if errors else None
    return done.stdout
