"""The story of one pilot: plan, prepare, launch, watch, split, verify, record."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from harness import rundir
from harness.attempts import Opened, announce, discard, note_start, open_run
from harness.checks import failed_names, kernel_gate, run_checks
from harness.compile_cache import cache_state, count_compiled
from harness.crew import Crew, why_interrupted
from harness.failure import explain
from harness.interrupts import EXIT_CODES, Interrupts
from harness.kernel_gate import GateResult, run_gate
from harness.launch import TrainingProcesses
from harness.lookout import finish_tracking, lookout, start_follower
from harness.manifest import make_manifest
from harness.nodes import with_ports
from harness.out_of_memory import KernelKills
from harness.plan import ConfigError, Plan, make_plan
from harness.preflight import dry_run, refuse_impossible
from harness.privacy import redact, remember
from harness.progress import Progress, printable
from harness.proof import Proof
from harness.recorder import Recorder
from harness.repair import repair, tidy
from harness.rundir import JsonLines, RunDir, Status, find_runs, now, own_status
from harness.samplers import find_contention, samplers_for
from harness.schema import PilotConfig
from harness.scratch import Scratch
from harness.summary import RunFacts, summarize
from harness.terminal import show_end, show_start
from harness.titan.spec import TitanSpec
from harness.training import RANK_LOGS, SPEC_FILE, command, environment, make_spec
from harness.watch import End, Watchdog, watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console


@dataclass(frozen=True)
class Outcome:
    """What a pilot came to. ``exit_code`` is that of the command: 0 only if the run finished and no check failed."""

    run: RunDir | None
    """None where nothing was started."""
    state: str
    reason: str
    exit_code: int
    name: str


def run_pilot(config: PilotConfig, *, argv: list[str], interrupts: Interrupts | None = None) -> Outcome:
    """One pilot from its configuration to its record; on another node than the first, that node's part of it.

    Raises:
        ConfigError: the configuration cannot be run; nothing was started or written.
        KeyboardInterrupt: a signal came before there was anything to record.
    """
    from harness.terminal import make_console

    console = make_console()
    plan = make_plan(config)
    if config.dry_run:
        return Outcome(None, "dry run", "", dry_run(plan, console), plan.name)
    if plan.place.unknown:
        raise ConfigError(plan.place.unknown)
    refuse_impossible(plan)
    if find_spec("torch") is None or find_spec("torchtitan") is None:
        raise ConfigError("training needs torch and torchtitan: pip install '.[train]' (dry_run=true works without)")
    remember(asdict(config))
    interrupts = interrupts or Interrupts()
    with interrupts.caught():
        if not plan.place.records:
            from harness.other_node import run_other_node

            return run_other_node(plan, console, interrupts)
        report_vanished(console, Path(config.runs))
        opened = open_run(plan)
        run = opened.run
        if opened.finished:
            console.print(f"finished before its job was requeued: {run.path}", markup=False)
            return Outcome(run, rundir.FINISHED, "", 0, plan.name)
        plan = replace(plan, place=with_ports(plan.place), initial=opened.initial)
        job = plan.place.job.job_id if plan.place.job else ""
        status = own_status(rundir.RUNNING, started=now(), phase="preparing", attempt=opened.attempt, job=job)
        run.write_status(status)
        announce(plan, opened, plan.place, ready=False)
        crew = Crew(plan, run, plan.place) if plan.place.several else None
        try:
            return _run(plan, opened, status, console, argv, interrupts, crew)
        except ConfigError:
            discard(plan, opened)
            raise
        except KeyboardInterrupt:  # nothing trains yet
            reason, code = interrupts.received[0].name, interrupts.exit_code
            run.write_status(replace(status, state=rundir.KILLED, reason=reason, ended=now(), exit_code=code))
            console.print(f"killed: {reason}, before the training was started; record {run.path}", markup=False)
            return Outcome(run, rundir.KILLED, reason, code, plan.name)
        except Exception as error:
            reason = f"harness: {type(error).__name__}: {redact(str(error))}"
            run.write_status(replace(status, state=rundir.FAILED, reason=reason, ended=now(), exit_code=1))
            raise
        finally:
            if crew is not None:
                crew.close()


def _run(
    plan: Plan,
    opened: Opened,
    status: Status,
    console: Console,
    argv: list[str],
    interrupts: Interrupts,
    crew: Crew | None,
) -> Outcome:
    run, scratch = opened.run, Scratch(plan.config.launch.scratch, opened.run)
    spec = make_spec(plan, run.path, prepare=True)
    launch = plan.config.launch.command or command(plan, spec, run.path, logs=scratch.rank_logs(0))
    env = environment(plan, run.path)
    run.write_text(rundir.CONFIG, _yaml(plan.config))
    run.write_json(
        rundir.MANIFEST, make_manifest(plan, run_name=run_name(plan, run), command=launch, env=env, argv=argv)
    )
    run.write_text(SPEC_FILE, spec.to_json())
    proof = Proof(plan, spec, run, interrupted=lambda: bool(interrupts.received))
    show_start(console, plan, run)
    follower, started, kills = start_follower(plan, run), time.monotonic(), KernelKills()
    try:
        recorder, cache = Recorder(run, logs=scratch.folder), None
        note_start(recorder, plan, opened)
        with Progress(console, num_steps=plan.config.train.steps, num_ranks=plan.ranks) as progress:
            try:
                gate = _check_kernels(plan, run, progress, status)
                interrupts.only_note()
            except KeyboardInterrupt:
                gate, end = None, End(exit_code=None, interrupt=interrupts.received[0])
            else:
                if gate is not None and not gate.passed:
                    end = End(exit_code=None, cause=gate.reason)
                else:
                    run.write_status(replace(status, phase="training"))
                    announce(plan, opened, plan.place, ready=True)
                    look = lookout(plan, follower, console, crew)
                    look = proof.alongside(look, recorder.rows)
                    end, cache = _train(plan, run, launch, env, recorder, progress, interrupts, look)
        recorder.close()
        scratch.collect()
        facts = run_facts(plan, time.monotonic() - started, cache)
        run.write_status(replace(status, phase="recording"))
        outcome = _record(
            plan, run, spec, recorder, end, gate, facts, replace(status, phase=""), kills, interrupts, crew, proof
        )
        if crew is not None:
            crew.close()
        if follower is not None:
            finish_tracking(follower, interrupts, console)
    finally:
        kills.close()
        proof.close()
        if follower is not None:
            follower.end()
        tidy(run)
    show_end(console, plan, run)
    return replace(outcome, exit_code=interrupts.exit_code or outcome.exit_code)  # also where the signal came late


def _check_kernels(plan: Plan, run: RunDir, progress: Progress, status: Status) -> GateResult | None:
    """The numeric gate, before any money is spent; None where no kernel is on or the gate is off."""
    if not plan.swaps.kernels or not plan.config.kernel.gate:
        return None
    progress.phase("checking kernels against their references")
    run.write_status(replace(status, phase="kernel gate"))
    return run_gate(plan)


def _train(
    plan: Plan,
    run: RunDir,
    launch: list[str],
    env: dict[str, str],
    recorder: Recorder,
    progress: Progress,
    interrupts: Interrupts,
    look: Callable[[], str],
) -> tuple[End, str | None]:
    """Start, sample and watch the training; its end, and whether its compile cache was cold or warm."""
    device, sampling = plan.config.platform.device, plan.config.sampling
    compiled = count_compiled(device, os.environ | env)
    try:
        processes = TrainingProcesses(launch, run_id=run.run_id, env=env, num_ranks=plan.local_ranks)
    except OSError as error:
        return End(exit_code=None, cause=f"{launch[0]} cannot be started: {error.strerror}"), None
    samples = JsonLines(run.file(rundir.SAMPLES))

    def keep(sample: object) -> None:
        with contextlib.suppress(OSError):  # a full disk ends the training elsewhere, in order
            samples.append(sample)

    samplers = samplers_for(device, keep, recorder.note, root_pid=processes.pid, interval_s=sampling.interval_s)
    started = [sampler for sampler in samplers if sampling.enabled and sampler.start() is not False]
    train = plan.config.train
    watchdog = Watchdog(plan.config.launch, interrupts, num_steps=train.steps, log_freq=train.log_freq)

    def before_close() -> None:
        for sampler in started:
            sampler.stop()
        samples.close()
        for found in find_contention(run.samples()):
            recorder.note("contention", what=found.what, message=found.message)

    end = watch(processes, recorder, progress, watchdog, look, before_close)
    return end, cache_state(compiled, count_compiled(device, os.environ | env))


def _record(
    plan: Plan,
    run: RunDir,
    spec: TitanSpec,
    recorder: Recorder,
    end: End,
    gate: GateResult | None,
    facts: RunFacts,
    status: Status,
    kills: KernelKills,
    interrupts: Interrupts,
    crew: Crew | None,
    proof: Proof,
) -> Outcome:
    """Summary, checks and the final status, in this order: a run is over only when its record is complete."""
    rows, events = recorder.rows, recorder.events
    summary = summarize(rows, events, facts, run.samples())
    verdicts = run_checks(plan, spec, rows, events, end)
    if gate is not None:
        summary["kernel_check"] = gate.metrics()
        verdicts.append(kernel_gate(gate))
    if crew is not None:
        verdicts += crew.checks(ended_well=end.exit_code == 0 and not end.cause)
    run.write_json(rundir.SUMMARY, summary)
    verdicts += proof.checks(rows, end)
    run.write_json(rundir.CHECKS, verdicts)
    state, reason, exit_code = rundir.FINISHED, "", 0
    if end.interrupt is not None:
        reason, node_failed = why_interrupted(plan.place, end.interrupt.name)
        state, exit_code = (rundir.FAILED, 1) if node_failed else (rundir.KILLED, EXIT_CODES[end.interrupt.name])
    elif end.exit_code != 0 or end.cause:
        failure = explain(end, events, run.file(RANK_LOGS), kills)
        if crew is not None:
            failure = crew.failure(end, events, failure, interrupted=lambda: bool(interrupts.received))
        state, reason, exit_code = rundir.FAILED, failure.reason, 1
        if failure.detail:
            run.write_text("error.txt", failure.detail + "\n")
        if failure.memory is not None:
            recorder.note("out_of_memory", where=failure.memory.where, message=failure.memory.evidence)
    elif failed := failed_names(verdicts):
        reason, exit_code = f"checks failed: {', '.join(failed)}", 1
    run.write_status(replace(status, state=state, reason=reason, ended=now(), exit_code=exit_code))
    return Outcome(run, state, reason, exit_code, plan.name)


def run_name(plan: Plan, run: RunDir) -> str:
    """What MLflow's tables and charts call the run: short, and its own."""
    return f"{plan.config.path.name} {plan.config.kernel.name} r{plan.config.replicate} {run.run_id[-6:]}"


def run_facts(plan: Plan, wall_s: float | None, compile_cache: str | None) -> RunFacts:
    """What the summary needs to know about a run beside its log."""
    platform, train = plan.config.platform, plan.config.train
    return RunFacts(
        phases=plan.config.phases,
        ranks=plan.ranks,
        chips=plan.chips,
        nodes=plan.place.num_nodes,
        tokens_per_step=plan.tokens_per_step,
        seq_len=train.seq_len,
        shape=plan.shape,
        device=platform.chip or ("cpu" if platform.device == "cpu" else ""),
        lnc=platform.lnc,
        dtype=train.dtype,
        peak_flops_per_rank=platform.peak_flops_per_rank,
        price_per_hour=plan.price_per_hour,
        price_date=platform.price_date,
        wall_s=wall_s,
        compile_cache=compile_cache,
        rehearsal=plan.rehearsal,
    )


# -- preparing --------------------------------------------------------------------------------------------------------


def report_vanished(console: Console, runs: Path) -> None:
    """Set right what a harness that was killed left behind: its runs still say that they are running."""
    for run in find_runs(runs):
        if (repaired := repair(run)) is not None:
            line = printable(f"{run.path}: {repaired.reason}; marked as killed")
            console.print(line, style="yellow", markup=False)


def _yaml(config: PilotConfig) -> str:
    import yaml

    return yaml.safe_dump(redact(rundir.to_jsonable(asdict(config))), sort_keys=False)
