"""What is submitted, in which order, and what is said of it (no Slurm: the real one is in tests/cluster)."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from harness import rundir, slurm
from harness.meeting import INDEX, JobRecord, write_record
from harness.plan import ConfigError
from harness.queue import follow, submit
from harness.queue.__main__ import main
from harness.queue.follow import describe, outcome, places
from harness.queue.submit import ALLOCATION, Pilot, Settings, Submitted, parameters, submissions
from harness.queue.task import run_in_order
from harness.rundir import RunDir, own_status
from harness.slurm import JobState

PILOT = Pilot(name="native_4b-baseline", overrides=("path=native_4b",), nodes=2)
JOB = Submitted(job_id="12", pilots=(PILOT, PILOT), after=None, log="12_0_log.out", submitted="")


def sbatch(settings: Settings, *pilots: Pilot, after: str | None = None) -> list[str]:
    """The script that submitit would submit."""
    slurm_module = pytest.importorskip("submitit.slurm.slurm")
    text = slurm_module._make_sbatch_string(command="run", folder="logs", **parameters(pilots, settings, after))
    return text.splitlines()


def test_one_task_on_each_node_asked_to_end_before_the_limit() -> None:
    lines = sbatch(Settings(partition="trn2", account="lab", constraint="trn2.48xlarge", time_min=90), PILOT)
    options = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    assert {
        "nodes=2", "ntasks-per-node=1", "time=90", "partition=trn2", "account=lab", "constraint=trn2.48xlarge",
        "exclusive", "requeue", "signal=TERM@60", "job-name=native_4b-baseline",
    } <= set(options)  # fmt: skip
    assert not any("USR" in option or "dependency" in option for option in options)
    (command,) = [line for line in lines if line.startswith("srun")]
    assert "--cpu-bind=none --kill-on-bad-exit=0 --wait=0 run" in command


def test_further_settings() -> None:
    settings = Settings(requeue=False, exclusive=False, cpus_per_task=8, setup=("module load efa",), extra={"nice": 5})
    lines = sbatch(settings, PILOT, after="11")
    assert {"#SBATCH --no-requeue", "#SBATCH --dependency=afterany:11", "#SBATCH --nice=5", "module load efa"} <= set(
        lines
    )
    assert not {"#SBATCH --requeue", "#SBATCH --exclusive"} & set(lines)
    assert "--cpus-per-task=8 --cpu-bind=none" in next(line for line in lines if line.startswith("srun"))


def test_one_allocation_has_time_for_all() -> None:
    lines = sbatch(Settings(order=ALLOCATION, time_min=20), PILOT, PILOT, PILOT)
    assert {"#SBATCH --time=60", "#SBATCH --job-name=native_4b-baseline+2"} <= set(lines)


def test_what_cannot_be_submitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="order=sideways: one of chain, allocation was expected"):
        submit.submit([PILOT], Settings(order="sideways"), tmp_path)
    other = Pilot(name="x", overrides=(), nodes=1)
    with pytest.raises(ConfigError, match="one allocation has one number of nodes"):
        submit.submit([PILOT, other], Settings(order=ALLOCATION), tmp_path)
    monkeypatch.setattr(slurm, "available", lambda: False)
    with pytest.raises(ConfigError, match="needs Slurm's commands"):
        submit.submit([PILOT], Settings(), tmp_path)
    monkeypatch.setattr(slurm, "available", lambda: True)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match="needs submitit: pip install"):
        submit.submit([PILOT], Settings(), tmp_path)


# -- in the job -------------------------------------------------------------------------------------------------------


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], str]]:
    """Commands that the task has run; each one's exit code is its last word."""
    ran: list[tuple[list[str], str]] = []

    def call(command: list[str], env: dict[str, str]) -> int:
        ran.append((command, env[INDEX]))
        assert "HYDRA_FULL_ERROR" not in env
        return int(command[-1])

    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr("harness.queue.task.subprocess.call", call)
    return ran


def test_pilots_of_a_job_run_in_order(commands: list) -> None:
    assert run_in_order([["a", "0"], ["b", "0"]]) == [0, 0]
    assert commands == [([sys.executable, "-m", "harness", name, "0"], str(index)) for index, name in enumerate("ab")]


def test_a_pilot_that_fails_leaves_the_others_going_and_the_job_failed(commands: list) -> None:
    with pytest.raises(SystemExit) as exited:
        run_in_order([["a", "1"], ["b", "0"]])
    assert exited.value.code == 1
    assert len(commands) == 2


@pytest.mark.parametrize("code", ["143", "130", "-9"])
def test_a_signal_ends_the_rest_too(code: str, commands: list) -> None:
    with pytest.raises(SystemExit):
        run_in_order([["a", code], ["b", "0"]])
    assert len(commands) == 1


# -- what is shown ----------------------------------------------------------------------------------------------------


def leave(runs: Path, index: int, status: rundir.Status) -> RunDir:
    """A submitted job whose pilot ``index`` has a run."""
    (runs / submit.FOLDER).mkdir(parents=True, exist_ok=True)
    RunDir(runs / submit.FOLDER).write_json("12.json", asdict(JOB))
    run = RunDir.create(runs, "pilot", PILOT.name)
    run.write_status(status)
    record = JobRecord(run=f"pilot/{run.run_id}", config_hash="x", rdzv_id="", index=index)
    write_record(runs, f"12-0-{index}-x", record)
    return run


def test_where_each_pilot_is(tmp_path: Path) -> None:
    leave(tmp_path, 0, own_status(rundir.FINISHED, exit_code=0))
    leave(tmp_path, 1, own_status(rundir.RUNNING, phase="training", attempt=2))
    running = JobState(job_id="12", state="RUNNING", nodes=("a", "b"))
    assert [describe(place, tmp_path, running) for place in places([JOB])] == ["finished", "training on a,b, attempt 2"]
    pending = JobState(job_id="12", state="PENDING", reason="Resources")
    assert describe(places([JOB])[0], tmp_path / "none", pending) == "pending (Resources)"
    assert submissions(tmp_path) == {"12": JOB}


def test_what_became_of_a_pilot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "SETTLE_S", 0.0)
    monkeypatch.setattr(slurm, "job_state", lambda job_id: JobState(job_id=job_id, state="TIMEOUT", reason="TimeLimit"))
    run = leave(tmp_path, 0, own_status(rundir.FAILED, reason="checks failed: model", exit_code=1))
    first, second = (outcome(place, tmp_path) for place in places([JOB]))
    assert (first.run and first.run.path, first.state, first.exit_code) == (run.path, "failed", 1)
    assert (second.run, second.state, second.exit_code) == (None, "not run", 1)
    assert second.reason == "Slurm job 12 TIMEOUT (TimeLimit); log 12_0_log.out"


def test_status_without_slurm_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(slurm, "own_jobs", lambda: None)
    assert main(["status", "--runs", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("harness.queue: Slurm does not answer")
    monkeypatch.setattr(slurm, "own_jobs", lambda: {})
    assert main(["cancel", "--runs", str(tmp_path)]) == 2
    assert main(["status", "99", "--runs", str(tmp_path)]) == 2
    assert "not submitted from" in capsys.readouterr().err


def test_a_server_without_an_address_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.conftest import call

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    called = call("harness", "+path=native_4b", "tracking=server", "platform=cpu", "dry_run=true")
    assert called.exit_code == 2
    assert called.stderr.strip().splitlines()[-1] == (
        "harness: tracking.uri is the environment variable MLFLOW_TRACKING_URI, which is not set: export it first"
    )
