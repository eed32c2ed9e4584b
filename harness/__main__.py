"""``python -m harness +path=native_4b``: one pilot, or with ``-m`` several, through Hydra."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.pilot import Outcome

CONF = Path(__file__).resolve().parent.parent / "conf"
GROUPS = ("path", "platform", "kernel", "init", "data", "phases", "tracking")
OPTIONAL_GROUPS = ("experiment",)
HELP = """\
usage: python -m harness +path=PATH [key=value ...]      one pilot
       python -m harness -m +path=A,B [key=a,b ...]      all combinations, one pilot each

PATH is what is trained; each other choice has a default (marked *):
{groups}
Common keys: train.steps=10 train.seq_len= train.global_batch_size= train.seed= platform.num_ranks=
  scale.num_layers= tracking.uri= experiment_name= replicate= dry_run=true   (all: harness/schema.py, or --cfg job)

Examples:
  python -m harness +path=native_4b                                        train here, on CPU a rehearsal
  python -m harness +path=native_4b platform=trn2_48xlarge dry_run=true    show what would run on Trainium
  python -m harness -m +path=hf_4b,native_4b,moe_nki                       three pilots
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
    optional = name.lstrip("+") in OPTIONAL_GROUPS or name.startswith("+hydra")
    return argument.lstrip("+") if equals and not optional else argument


def help_text() -> str:
    lines = []
    for group in GROUPS:
        options = sorted(file.stem for file in (CONF / group).glob("*.yaml"))
        default = {"platform": "auto", "kernel": "baseline", "init": "random", "data": "auto", "phases": "default",
                   "tracking": "local"}.get(group)  # fmt: skip
        lines.append(f"  {group:<9} {', '.join(option + '*' * (option == default) for option in options)}")
    return HELP.format(groups="\n".join(lines))


class Application:
    """One call of the command: Hydra composes, each composed job is a pilot."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments
        self.outcomes: list[Outcome] = []
        self.exit_code: int | None = None
        self.multirun = any(argument in ("-m", "--multirun") for argument in arguments)

    def run(self) -> int:
        import hydra
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        from harness.schema import register
        from harness.usage import explain

        register()
        sweep_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        OmegaConf.register_new_resolver("sweep_id", lambda: sweep_id, replace=True)
        sys.argv = [sys.argv[0], *self.arguments]
        wants_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors instead of printing them at length
        try:
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(self.job)()
        except (HydraException, OmegaConfBaseException) as error:
            if wants_traceback:
                raise
            print(f"harness: {explain(error)}", file=sys.stderr)
            self.exit_code = 2
        except KeyboardInterrupt:
            self.exit_code = self.exit_code or 130
        return self._conclude()

    def job(self, config: Any) -> None:
        """One pilot of this call. Exceptions that belong to the user are printed here, in a line or two."""
        from omegaconf import OmegaConf

        from harness.pilot import Outcome, run_pilot
        from harness.plan import ConfigError

        typed = OmegaConf.to_object(config)
        try:
            outcome = run_pilot(typed, argv=["python", "-m", "harness", *self.arguments])
        except ConfigError as error:
            print(f"harness: {error}", file=sys.stderr)
            self.exit_code = 2
            outcome = Outcome(None, "refused", str(error), 2, f"{typed.path.name}-{typed.kernel.name}")
        if outcome is not None:
            self.outcomes.append(outcome)
            if outcome.exit_code >= 128:  # interrupted: the sweep ends too
                self.exit_code = outcome.exit_code
                raise KeyboardInterrupt

    def _conclude(self) -> int:
        codes = [outcome.exit_code for outcome in self.outcomes]
        if self.multirun and self.outcomes:
            from harness.terminal import make_console, show_sweep

            show_sweep(make_console(), self.outcomes)
            return self.exit_code if self.exit_code and self.exit_code >= 128 else int(any(codes))
        return self.exit_code or max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
