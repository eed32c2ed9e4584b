"""The story of one pilot: plan, prepare, launch, watch, split, verify, record."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from harness import checks, rundir
from harness.failure import explain
from harness.launch import TrainingProcesses
from harness.manifest import make_manifest
from harness.plan import ConfigError, Plan, make_plan
from harness.preflight import dry_run, refuse_impossible
from harness.progress import Progress
from harness.rundir import RunDir, Status, find_runs, now, own_status, repair
from harness.schema import PilotConfig
from harness.summary import RunFacts, summarize
from harness.terminal import show_end, show_start
from harness.tracking import Tracker, default_uri
from harness.training import RANK_LOGS, SPEC_FILE, command, environment, make_spec
from harness.watch import End, Interrupts, Recorder, Watchdog, watch

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = {"SIGINT": 130, "SIGTERM": 143}


@dataclass(frozen=True)
class Outcome:
    """What a pilot came to. ``exit_code`` is that of the command: 0 only if the run finished and no check failed."""

    run: RunDir | None
    """None where nothing was started."""
    state: str
    reason: str
    exit_code: int
    name: str


def run_pilot(config: PilotConfig, *, argv: list[str]) -> Outcome:
    """One pilot from its configuration to its record.

    Raises:
        ConfigError: the configuration cannot be run; nothing was started or written.
    """
    from harness.terminal import make_console

    console = make_console()
    plan = make_plan(config)
    if config.dry_run:
        return Outcome(None, "dry run", "", dry_run(plan, console), plan.name)
    refuse_impossible(plan)
    if find_spec("torch") is None or find_spec("torchtitan") is None:
        raise ConfigError("training needs torch and torchtitan: pip install '.[train]' (dry_run=true works without)")
    report_vanished(console, Path(config.runs))
    run = RunDir.create(Path(config.runs), config.experiment_name, plan.name)
    try:
        return _run(plan, run, console, argv)
    except ConfigError:
        _discard(run)
        raise


def _run(plan: Plan, run: RunDir, console: Console, argv: list[str]) -> Outcome:
    status = own_status(rundir.RUNNING, started=now(), phase="preparing")
    spec = make_spec(plan, run.path, prepare=True)
    launch, env = command(plan, spec, run.path), environment(plan, run.path)
    run.write_text(rundir.CONFIG, _yaml(plan.config))
    run.write_json(
        rundir.MANIFEST, make_manifest(plan, run_name=run_name(plan, run), command=launch, env=env, argv=argv)
    )
    run.write_text(SPEC_FILE, spec.to_json())
    run.write_status(status)
    show_start(console, plan, run)
    tracker = _start_tracker(plan, run)
    interrupts, started = Interrupts(), time.monotonic()
    with interrupts.caught():
        recorder = Recorder(run)
        processes = TrainingProcesses(launch, run_id=run.run_id, env=env)
        run.write_status(replace(status, phase="training"))
        watchdog = Watchdog(plan.config.launch, interrupts, num_steps=plan.config.train.steps)
        with Progress(console, num_steps=plan.config.train.steps, num_ranks=plan.ranks) as progress:
            end = watch(processes, recorder, progress, watchdog, interrupts)
        outcome = _record(plan, run, recorder, end, replace(status, phase=""), time.monotonic() - started)
        _finish_tracking(plan, run, tracker, console)
    show_end(console, plan, run)
    return outcome


def _record(plan: Plan, run: RunDir, recorder: Recorder, end: End, status: Status, wall_s: float) -> Outcome:
    """Summary, checks and the final status, in this order: a run is over only when its record is complete."""
    rows, events = recorder.rows, recorder.events
    run.write_json(rundir.SUMMARY, summarize(rows, events, run_facts(plan, wall_s), run.samples()))
    verdicts = checks.run_checks(plan, rows, events, end)
    run.write_json(rundir.CHECKS, verdicts)
    state, reason, exit_code = rundir.FINISHED, "", 0
    if end.interrupt is not None:
        state, reason, exit_code = rundir.KILLED, end.interrupt.name, INTERRUPTED[end.interrupt.name]
    elif end.exit_code != 0 or end.cause:
        failure = explain(end, events, run.file(RANK_LOGS))
        state, reason, exit_code = rundir.FAILED, failure.reason, 1
        if failure.detail:
            run.write_text("error.txt", failure.detail + "\n")
    elif failed := checks.failed(verdicts):
        reason, exit_code = f"checks failed: {', '.join(failed)}", 1
    run.write_status(replace(status, state=state, reason=reason, ended=now(), exit_code=exit_code))
    return Outcome(run, state, reason, exit_code, plan.name)


def run_name(plan: Plan, run: RunDir) -> str:
    """What MLflow's tables and charts call the run: short, and its own."""
    return f"{plan.config.path.name} {plan.config.kernel.name} r{plan.config.replicate} {run.run_id[-6:]}"


def run_facts(plan: Plan, wall_s: float | None) -> RunFacts:
    """What the summary needs to know about a run beside its log."""
    platform, train = plan.config.platform, plan.config.train
    return RunFacts(
        phases=plan.config.phases,
        ranks=plan.ranks,
        chips=platform.num_chips,
        tokens_per_step=plan.tokens_per_step,
        seq_len=train.seq_len,
        shape=plan.shape,
        device=platform.chip or ("cpu" if platform.device == "cpu" else ""),
        lnc=platform.lnc,
        dtype=train.dtype,
        peak_flops_per_rank=platform.peak_flops_per_rank,
        price_per_hour=platform.price_per_hour,
        price_date=platform.price_date,
        wall_s=wall_s,
        rehearsal=plan.rehearsal,
    )


# -- tracking ---------------------------------------------------------------------------------------------------------


def tracking_uri(plan: Plan) -> str:
    return plan.config.tracking.uri or default_uri(Path(plan.config.runs))


def _start_tracker(plan: Plan, run: RunDir) -> subprocess.Popen | None:
    """A process of its own that sends the run directory while it grows: the training never waits for a server."""
    tracking = plan.config.tracking
    if not tracking.enabled:
        return None
    log = run.file("tracking.log").open("wb")
    arguments = ["--follow", str(run.path), "--uri", tracking_uri(plan), "--flush-s", str(tracking.flush_s)]
    with log:
        return subprocess.Popen(
            [sys.executable, "-m", "harness.sync", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _finish_tracking(plan: Plan, run: RunDir, tracker: subprocess.Popen | None, console: Console) -> None:
    """Wait for the tracker as long as it makes progress; a server that fails is left to ``harness.sync``."""
    if tracker is None:
        return
    limit = time.monotonic() + plan.config.tracking.wait_s
    failing_since = None
    with console.status("sending to MLflow") if console.is_terminal else contextlib.nullcontext():
        while tracker.poll() is None and time.monotonic() < limit:
            error = Tracker(run, tracking_uri(plan)).sent.error
            failing_since = (failing_since or time.monotonic()) if error else None
            if failing_since is not None and time.monotonic() - failing_since > 1.0:
                break
            time.sleep(0.05)
    if tracker.poll() is None:
        tracker.kill()
    tracker.wait()


# -- preparing --------------------------------------------------------------------------------------------------------


def report_vanished(console: Console, runs: Path) -> None:
    """Set right what a harness that was killed left behind: its runs still say that they are running."""
    for run in find_runs(runs):
        if (repaired := repair(run)) is not None:
            console.print(f"{run.path}: {repaired.reason}; marked as killed", style="yellow")


def _yaml(config: PilotConfig) -> str:
    import yaml

    from harness.privacy import redact

    return yaml.safe_dump(redact(rundir.to_jsonable(asdict(config))), sort_keys=False)


def _discard(run: RunDir) -> None:
    """Remove the directory of a run that never began."""
    shutil.rmtree(run.path, ignore_errors=True)
