"""``python -m harness +path=native_4b``: one pilot, or with ``-m`` several, through Hydra."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.interrupts import Interrupts

if TYPE_CHECKING:
    from harness.pilot import Outcome

CONF = Path(__file__).resolve().parent.parent / "conf"
GROUPS = ("path", "platform", "kernel", "init", "data", "phases", "tracking")
OPTIONAL_GROUPS = ("experiment",)
FREE_KEYS = "platform.env."
"""Below this, any key may be named."""
FINISHED = "finished"
HELP = """\
usage: python -m harness +path=PATH [key=value ...]      one pilot
       python -m harness -m +path=A,B [key=a,b ...]      all combinations, one pilot each
       python -m harness +path=PATH key=a,b replicates=N  a comparison: a and b in interleaved blocks, N times each
       python -m harness +experiment=NAME                the same, prepared: {experiments}

PATH is what is trained; each other choice has a default (marked *):
{groups}
Common keys: train.steps=10 train.seq_len= train.global_batch_size= train.seed= platform.num_ranks=
  scale.num_layers= tracking.uri= experiment_name= dry_run=true   (all: harness/schema.py, or --cfg job)
Keys of a comparison: replicates=N sweep.order=interleaved|blocked sweep.start_seed=N sweep.vary_seed=true
  sweep.mix=true (harness/sweep/jobs.py). An interrupted one is resumed by the same command.

Examples:
  python -m harness +path=native_4b                                        train here, on CPU a rehearsal
  python -m harness +path=native_4b platform=trn2_48xlarge dry_run=true    show what would run on Trainium
  python -m harness -m +path=hf_4b,native_4b,moe_nki                       three pilots
  python -m harness +experiment=rope_ab                                    is the RoPE kernel faster?
Afterwards: `make ui` shows the runs in MLflow; `python -m harness.sync` sends what a tracking server missed.
Exit codes: 0 done, 1 a run or a check failed, 2 wrong usage or configuration, 130/143 interrupted.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = [accept_plus(argument) for argument in (sys.argv[1:] if arguments is None else arguments)]
    if not arguments or any(argument in ("-h", "--help") for argument in arguments):
        print(help_text(), file=sys.stdout if arguments else sys.stderr, end="")
        return 0 if arguments else 2
    return Application(arguments).run()


def accept_plus(argument: str) -> str:
    """``+path=x`` as ``path=x``: Hydra wants the plus for what has no default only, which people cannot know.

    Without its plus, a key that does not exist is refused instead of added.
    """
    name, equals, _ = argument.partition("=")
    if name.lstrip("+").startswith(FREE_KEYS):
        return f"++{argument.lstrip('+')}"
    optional = name.lstrip("+") in OPTIONAL_GROUPS or name.startswith("+hydra")
    return argument.lstrip("+") if equals and not optional else argument


def accept_sweep(arguments: Sequence[str]) -> list[str]:
    """``replicates=4`` and ``sweep.order=blocked`` as settings of the interleaved sweeper, which they choose.

    Raises:
        ConfigError: ``sweep.`` with a key that does not exist, or several experiments at once.
    """
    from harness.plan import ConfigError
    from harness.sweep.jobs import settings_override

    if any(argument.startswith("+experiment=") and "," in argument for argument in arguments):
        raise ConfigError("one experiment at a time: each says itself what it sweeps over")
    settings = [settings_override(argument) for argument in arguments]
    accepted = [setting or argument for setting, argument in zip(settings, arguments, strict=True)]
    if any(settings) and not any(argument.startswith("+experiment=") for argument in arguments):
        accepted += ["hydra/sweeper=interleaved"] if not any("hydra/sweeper=" in text for text in accepted) else []
        accepted += ["hydra.mode=MULTIRUN"]
    return accepted


def help_text() -> str:
    lines = []
    for group in GROUPS:
        options = sorted(file.stem for file in (CONF / group).glob("*.yaml"))
        default = {"platform": "auto", "kernel": "baseline", "init": "random", "data": "auto", "phases": "default",
                   "tracking": "local"}.get(group)  # fmt: skip
        lines.append(f"  {group:<9} {', '.join(option + '*' * (option == default) for option in options)}")
    experiments = ", ".join(sorted(file.stem for file in (CONF / "experiment").glob("*.yaml")))
    return HELP.format(groups="\n".join(lines), experiments=experiments)


class Application:
    """One call of the command: Hydra composes, each composed job is a pilot."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments
        self.outcomes: list[Outcome] = []
        self.exit_code: int | None = None
        self.multirun = any(argument in ("-m", "--multirun") for argument in arguments)
        self.tabulated = False
        """Whether the sweeper itself shows what came out."""
        self.interrupts = Interrupts()

    def run(self) -> int:
        """Everything from here on can be interrupted: what runs is ended in order, what would follow is left out."""
        with self.interrupts.caught():
            try:
                self._compose_and_run()
            except KeyboardInterrupt:
                self.interrupts.only_note()
                if not self.interrupts.received:  # raised by something else than a signal
                    self.interrupts.received.append(signal.SIGINT)
            self.interrupts.only_note()
            return self._conclude()

    def _compose_and_run(self) -> None:
        import hydra
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        from harness import schema, sweeper
        from harness.plan import ConfigError
        from harness.queue import launcher
        from harness.usage import explain

        schema.register()
        sweeper.register()
        launcher.register(self.take, self.interrupts.received)
        sweep_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        OmegaConf.register_new_resolver("sweep_id", lambda: sweep_id, replace=True)
        wants_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors instead of printing them at length
        try:
            sys.argv = [sys.argv[0], *accept_sweep(self.arguments)]
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(self.job)()
        except ConfigError as error:
            print(f"harness: {error}", file=sys.stderr)
            self.exit_code = 2
        except (HydraException, OmegaConfBaseException) as error:
            if wants_traceback:
                raise
            print(f"harness: {explain(error)}", file=sys.stderr)
            self.exit_code = 2

    def job(self, config: Any) -> Outcome:
        """One pilot of this call. Exceptions that belong to the user are printed here, in a line or two."""
        from omegaconf import OmegaConf

        from harness.pilot import Outcome, run_pilot
        from harness.plan import ConfigError

        typed = OmegaConf.to_object(config)
        self.tabulated = self.tabulated or bool(typed.sweep)
        try:
            argv = ["python", "-m", "harness", *self.arguments]
            outcome = run_pilot(typed, argv=argv, interrupts=self.interrupts)
        except ConfigError as error:
            print(f"harness: {error}", file=sys.stderr)
            outcome = Outcome(None, "refused", str(error), 2, f"{typed.path.name}-{typed.kernel.name}")
        self.outcomes.append(outcome)
        if self.interrupts.received:  # the sweep ends too
            raise KeyboardInterrupt
        return outcome

    def take(self, outcome: Outcome, swept: bool) -> None:
        """What became of a pilot that ran elsewhere; ``swept``: the sweeper shows it."""
        self.outcomes.append(outcome)
        self.tabulated = self.tabulated or swept

    def _conclude(self) -> int:
        codes = [outcome.exit_code for outcome in self.outcomes]
        if self.tabulated:
            return self.interrupts.exit_code or self.exit_code or int(any(codes))
        if self.multirun and self.outcomes:
            from harness.terminal import make_console, show_resume, show_sweep

            console = make_console()
            show_sweep(console, self.outcomes)
            if self.interrupts.received:
                show_resume(console, remaining_jobs(self.arguments, [o.state == FINISHED for o in self.outcomes]))
        elif self.interrupts.received and not self.outcomes:
            print("harness: interrupted before anything was started", file=sys.stderr)
        if self.interrupts.received:
            return self.interrupts.exit_code
        return int(any(codes)) if self.multirun and self.outcomes else self.exit_code or max(codes, default=0)


def remaining_jobs(arguments: Sequence[str], finished: Sequence[bool]) -> list[list[str]]:
    """The single pilots that an interrupted sweep did not finish, each as its own arguments, in the sweep's order."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    overrides = OverridesParser.create().parse_overrides([item for item in arguments if not item.startswith("-")])
    jobs = [list(job) for batch in BasicSweeper.split_arguments(overrides, max_batch_size=None) for job in batch]
    return [job for place, job in enumerate(jobs) if place >= len(finished) or not finished[place]]


if __name__ == "__main__":
    sys.exit(main())
