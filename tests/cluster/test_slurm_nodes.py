"""Pilots on two nodes of a real Slurm: the same training as on one, and the end of a node in the middle."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from harness.rundir import FAILED, FINISHED, RUNNING, find_runs
from tests.cluster.submitted import REAL, Queue, has_state, has_steps, stand_in, status_of
from tests.conftest import call, only_run

pytestmark = pytest.mark.cluster
TWO_NODES = ("platform.num_nodes=2", "platform.num_ranks=1")
STEPS = "train.steps=12"


@pytest.mark.titan
def test_two_nodes_train_what_two_ranks_of_one_node_train(queue: Queue) -> None:
    called = queue.submit(*REAL, *TWO_NODES, STEPS, "tracking=off")
    assert called.exit_code == 0, (called.stdout, called.stderr, queue.logs())
    run = only_run(queue.runs)
    alone = queue.runs.parent / "alone"
    alone.mkdir()
    os.symlink(queue.runs / ".cache", alone / ".cache")
    assert call("harness", *REAL, "platform.num_ranks=2", STEPS, "tracking=off", f"runs={alone}").exit_code == 0
    losses, expected = ([row["loss"] for row in found.rows()] for found in (run, only_run(alone)))
    assert len(losses) == 12
    assert losses == pytest.approx(expected, abs=1e-4)
    assert len(set(losses)) == 12  # a training that stands still would be equal as well

    assert status_of(run).state == FINISHED
    verdicts = {check["name"]: (check["verdict"], check["evidence"]) for check in run.checks()}
    assert verdicts["nodes"] == ("pass", "node 0 (node1) records, node 1 (node2) exit code 0")
    assert verdicts["recording_node"][0] == "pass"
    assert {verdict for verdict, _ in verdicts.values()} == {"pass"}
    job, cluster = status_of(run).job, run.manifest()["cluster"]
    assert (cluster["num_nodes"], cluster["nodes"], cluster["slurm_job_id"]) == (2, ["node1", "node2"], job)
    assert run.manifest()["hardware"]["nodes"] == "node1,node2"
    assert run.config()["platform"]["rdzv_id"] is None  # another start, the same configuration
    steps = [line for line in run.file("train.node1.log").read_text().splitlines() if " step: " in line]
    assert len(steps) == 12
    end = run.summary()["end_to_end"]
    assert end["tps_per_node"] == pytest.approx(end["tokens_per_s"] / 2)
    assert end["tps_per_rank"] == pytest.approx(end["tokens_per_s"] / 2)
    queue.assert_nothing_left()


def test_a_slurmd_that_is_killed_ends_the_run_with_its_node_named(queue: Queue) -> None:
    job = queue.detach(
        *stand_in(6000, 0.05), *TWO_NODES, "tracking=off", "hydra.launcher.requeue=false", "launch.node_lost_s=60"
    )
    run = queue.until(has_steps(3), "steps")
    os.kill(queue.cluster.forget("node2"), signal.SIGKILL)
    try:
        queue.until(lambda found: not has_state(RUNNING)(found), "end")
        queue.until_job(job, "NODE_FAIL", "FAILED", "CANCELLED", "COMPLETED")
    finally:
        queue.cluster.start_node("node2")
    status = status_of(run)
    assert (status.state, status.exit_code) == (FAILED, 1)
    assert "node 1 (node2) is lost: Slurm says DOWN" in status.reason
    queue.assert_nothing_left(40)


def test_a_node_that_dies_with_everything_on_it_ends_the_run_with_its_name(queue: Queue) -> None:
    queue.detach(
        *stand_in(6000, 0.05), *TWO_NODES, "tracking=off", "hydra.launcher.requeue=false", "launch.node_lost_s=4"
    )
    run = queue.until(lambda run: has_steps(3)(run) and run.file("train.node1.log").exists(), "steps on both nodes")
    killed = queue.cluster.kill_node("node2")
    assert len(killed) > 3  # slurmd, the step and the pilot's processes
    try:
        queue.until(has_state(FAILED), "failure")
    finally:
        queue.cluster.start_node("node2")
    assert status_of(run).reason.startswith("node 1 (node2) is lost: no sign of life for ")
    queue.assert_nothing_left(40)


def test_one_command_on_each_node_without_slurm(tmp_path: Path) -> None:
    """Given ranks; and node 1's launcher is killed, which node 0 has to notice by itself."""
    from tests.conftest import start

    runs = tmp_path / "runs"
    common = (
        *stand_in(6000, 0.05), "platform.num_nodes=2", "platform.rdzv_endpoint=127.0.0.1:29517",
        "platform.rdzv_id=given-1", "tracking=off", f"runs={runs}", "launch.node_lost_s=3",
    )  # fmt: skip
    first = start(*common, "platform.node_rank=0")
    second = start(*common, "platform.node_rank=1", "platform.local_addr=127.0.0.2")
    try:
        Queue.until(_Plain(runs), has_steps(3), "steps")  # type: ignore[arg-type]
        run = Queue.until(_Plain(runs), lambda run: run.file("train.node1.log").exists(), "log")  # type: ignore[arg-type]
        second.kill()
        output, _ = first.communicate(timeout=60)
    finally:
        second.kill()
        first.kill()
    assert first.returncode == 1, output
    assert status_of(run).state == FAILED
    assert status_of(run).reason.startswith("node 1 (127.0.0.2) is lost: no sign of life for ")
    assert len(find_runs(runs)) == 1


class _Plain:
    """What ``Queue.until`` needs, without a cluster."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs

    def logs(self) -> str:
        return ""
