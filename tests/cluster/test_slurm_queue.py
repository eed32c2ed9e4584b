"""Sweeps and single pilots through the queue of a real Slurm: order, requeue, cancel, and what is shown."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from harness.rundir import FINISHED, KILLED, find_runs
from tests.cluster.submitted import REAL, Queue, has_state, has_steps, interrupt, stand_in, status_of
from tests.conftest import call

pytestmark = pytest.mark.cluster
TWO_NODES = ("platform.num_nodes=2", "platform.num_ranks=1")
LONGER = tuple("train.seq_len=256" if word.startswith("train.seq_len") else word for word in REAL)
SWEEP = (
    "kernel=baseline,nki_rope",
    "replicates=2",
    "train.steps=20",
    "platform.num_ranks=1",
    "tracking=off",
    "phases=skip_first",
    "kernel.gate=false",  # which is tested elsewhere, and takes seconds
)
COMPARE = (
    "compare",
    "--baseline",
    "kernel=baseline",
    "--candidate",
    "kernel=nki_rope",
    "--json",
    "--allow",
    "git",
)  # the work tree may change meanwhile


def compared(runs: Path) -> dict:
    called = call("analysis", *COMPARE, "--runs", str(runs))
    assert called.stdout, called.stderr
    return json.loads(called.stdout)


def without_times(report: dict) -> dict:
    """All of a report that two measurements of the same trainings share: everything but step times and what follows."""
    same = ("verdict", "comparable", "rehearsal", "baseline", "candidate", "undeclared_differences", "left_out", "loss")
    kept = {key: report[key] for key in (*same, "grad_norm")}
    kept["declared"] = [item for item in report["declared_differences"] if not item["key"].startswith("git.")]
    return kept | {"pairs": [pair["label"] for pair in report["pairs"]], "quantities": sorted(report["quantities"])}


@pytest.mark.titan
def test_a_sweep_through_the_queue_reports_what_a_local_one_does(queue: Queue) -> None:
    called = queue.submit(*LONGER, *SWEEP, "sweep.mix=true")
    assert called.exit_code == 0, (called.stdout, called.stderr, queue.logs())
    runs = find_runs(queue.runs)
    assert [status_of(run).state for run in runs] == [FINISHED] * 4
    assert [(run.config()["kernel"]["name"], run.config()["block"]) for run in runs] == [
        ("baseline", 0), ("nki_rope", 0), ("nki_rope", 1), ("baseline", 1),
    ]  # fmt: skip
    assert len({status_of(run).job for run in runs}) == 4  # each a job of its own, after the one before
    ended = [(status_of(run).started, status_of(run).ended) for run in runs]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ended))

    again = queue.submit(*LONGER, *SWEEP, "sweep.mix=true")
    assert "4 finished before, 0 to run" in again.stdout
    assert again.exit_code == 0

    local = queue.runs.parent / "local"
    local.mkdir()
    (local / ".cache").symlink_to(queue.runs / ".cache")
    assert call("harness", "-m", *LONGER, *SWEEP, "sweep.mix=true", f"runs={local}").exit_code == 0
    here, there = compared(queue.runs), compared(local)
    assert without_times(here) == without_times(there)
    assert (len(here["pairs"]), here["left_out"]) == (2, [])
    assert here["verdict"] == "unresolved"  # two pairs prove nothing, wherever they ran
    losses = [[[row["loss"] for row in run.rows()] for run in find_runs(root)] for root in (queue.runs, local)]
    assert losses[0] == losses[1]  # the same trainings in the same order
    queue.assert_nothing_left()


def test_a_requeued_pilot_is_the_same_run_and_ends_finished(queue: Queue) -> None:
    job = queue.detach(*stand_in(120, 0.05))
    run = queue.until(has_steps(10), "steps")
    queue.cluster.ask("scontrol", "requeue", job)
    queue.until(has_state(KILLED), "end of the first attempt")
    assert status_of(run).reason == "SIGTERM (the job was requeued)"
    queue.until_job(job, "PENDING")
    queue.cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now")  # Slurm would wait two minutes
    queue.until_job(job, "COMPLETED", "FAILED")  # the stand-in passes no check of the model
    queue.until(has_state(FINISHED), "end of the second attempt")
    status = status_of(run)
    assert (status.attempt, status.job) == (2, job)
    assert [row["step"] for row in run.rows()] == list(range(1, 121))
    first = [json.loads(line)["step"] for line in (run.path / "attempts/1/rows.jsonl").read_text().splitlines()]
    assert first == list(range(1, len(first) + 1))
    assert 10 <= len(first) < 120

    from mlflow.entities import ViewType
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{queue.runs / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (shown,) = client.search_runs(experiments)
    assert (shown.info.status, shown.data.tags["attempt"], shown.data.tags["slurm_job_id"]) == ("FINISHED", "2", job)
    assert shown.data.tags["nodes"] in ("node1", "node2")
    losses = client.get_metric_history(shown.info.run_id, "train/loss")
    assert sorted(point.step for point in losses) == list(range(1, 121))
    assert len(client.search_runs(experiments, run_view_type=ViewType.DELETED_ONLY)) == 1
    queue.assert_nothing_left()


def test_scancel_ends_killed_on_both_nodes(queue: Queue) -> None:
    job = queue.detach(*stand_in(6000, 0.05), *TWO_NODES, "tracking=off")
    run = queue.until(has_steps(3), "steps")
    status = call("harness.queue", "status", "--runs", str(queue.runs), env=queue.cluster.environment)
    (line,) = [line for line in status.stdout.splitlines() if line.startswith(job)]
    assert line.split()[:3] == [job, "running", "node1,node2"]
    assert "training on node1,node2" in line
    queue.cluster.ask("scancel", job)
    queue.until(has_state(KILLED), "end")
    assert status_of(run).reason == "SIGTERM (the job was cancelled)"
    assert status_of(run).exit_code == 143
    assert queue.until_job(job, "CANCELLED") == "CANCELLED"
    queue.assert_nothing_left()


def test_ctrl_c_cancels_the_jobs(queue: Queue) -> None:
    sweep = queue.start(*stand_in(6000, 0.05), "tracking=off", "train.seed=1,2", "replicates=1", "sweep.mix=true")
    run = queue.until(has_steps(3), "steps")
    jobs = [file.stem for file in sorted((queue.runs / ".queue").glob("*.json"))]
    assert [queue.cluster.job_state(job) for job in jobs] == ["RUNNING", "PENDING"]  # the second waits for the first
    output = interrupt(sweep)
    assert sweep.returncode == 130, output
    assert f"cancelled: {jobs[0]} {jobs[1]}" in output
    assert "interrupted: 0 of 2 finished; the same command runs the other 2:" in output
    for job in jobs:
        queue.until_job(job, "CANCELLED")
    queue.until(has_state(KILLED), "end")
    assert status_of(run).exit_code == 143
    queue.assert_nothing_left()


def test_one_allocation_runs_all_pilots_on_the_same_nodes(queue: Queue) -> None:
    arguments = ("tracking=off", "train.seed=1,2", "replicates=1", "sweep.mix=true", "hydra.launcher.order=allocation")
    scratch = queue.runs.parent / "scratch"
    called = queue.submit(*stand_in(5, 0.01), *TWO_NODES, *arguments, f"launch.scratch={scratch}")
    runs = find_runs(queue.runs)
    assert [status_of(run).state for run in runs] == [FINISHED, FINISHED], (called, queue.logs())
    assert len({status_of(run).job for run in runs}) == 1
    assert [run.config()["train"]["seed"] for run in runs] == [1, 2]
    assert [run.manifest()["cluster"]["nodes"] for run in runs] == [["node1", "node2"]] * 2
    for run in runs:  # written on the nodes' own disks
        assert run.file("train.node1.log").read_text().count(" step: ") == 5
        assert run.file("nodes/1.rows.jsonl").exists()
    assert list(scratch.iterdir()) == []
    queue.assert_nothing_left()


def test_what_slurm_refuses_is_said_in_a_line(queue: Queue) -> None:
    called = queue.submit(*stand_in(), "hydra.launcher.partition=nowhere")
    assert called.exit_code == 2
    assert called.stderr.strip().splitlines()[-1].startswith("harness: Slurm refuses: ")
    assert "invalid partition" in called.stderr
    automatic = queue.submit("+path=native_4b", "scale.num_layers=2")
    assert (automatic.exit_code, automatic.stderr.strip().splitlines()[-1]) == (
        2, "harness: platform=auto looks at the machine where this is typed: name what the nodes are, e.g. "
        "platform=trn2_48xlarge",
    )  # fmt: skip
