"""``python -m analysis compare | report | runs | selftest``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

EPILOG = """\
examples:
  python -m analysis runs --where path=native_4b
  python -m analysis compare --baseline kernel=baseline --candidate kernel=nki_rope --where experiment=rope_ab
  python -m analysis report  --baseline kernel=baseline --candidate kernel=nki_rope --out report.html
  python -m analysis compare --baseline experiment=aa --candidate experiment=aa        A/A: identical arms
exit codes: 0 done, 1 not comparable (or a wrong verdict in the self-test), 2 wrong usage, 130 interrupted,
            3 selftest --real: nothing wrong was said, but this machine is too noisy to show the planted sleep
"""


class Parser(argparse.ArgumentParser):
    """Tells a wrong usage in two lines, without the synopsis of twenty options."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"analysis: {message}\n  {self.prog} --help lists what there is\n")


def parser() -> argparse.ArgumentParser:
    """The command line; a module of its own is imported only once a command is chosen."""
    top = Parser(
        prog="python -m analysis",
        description="Is the kernel faster, and is it still the same training?",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="compare | report | runs | selftest")
    compare = commands.add_parser("compare", help="compare two arms and print the verdict")
    _add_source(compare)
    _add_request(compare)
    compare.add_argument("--json", action="store_true", help="everything as JSON on stdout")
    report = commands.add_parser("report", help="the same as a page with plots, also recorded in MLflow")
    _add_source(report)
    _add_request(report)
    report.add_argument("--format", choices=("html", "md"), default="html")
    report.add_argument("--out", type=Path, help="file to write (default: report.html; md goes to stdout)")
    report.add_argument("--record", metavar="URI", help="MLflow server to record it in (default: the runs')")
    report.add_argument("--no-mlflow", action="store_true", help="write the file only")
    runs = commands.add_parser("runs", help="list the runs that can be compared")
    _add_source(runs)
    runs.add_argument("--where", nargs="+", default=[], metavar="KEY=VALUE")
    runs.add_argument("--json", action="store_true", help="one JSON object per run")
    selftest = commands.add_parser("selftest", help="feed known truths through the whole chain")
    selftest.add_argument("--expect", metavar="VERDICT", help="instead: these real runs must give this verdict")
    selftest.add_argument("--real", action="store_true", help="train here, with a planted sleep (about 2 minutes)")
    _add_source(selftest)
    _add_request(selftest, required=False)
    return top


def _add_source(command: argparse.ArgumentParser) -> None:
    source = command.add_argument_group("where the runs are")
    source.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="run directories (default: runs)"
    )
    source.add_argument("--mlflow", metavar="URI", help="read from an MLflow server or sqlite:///FILE instead")
    source.add_argument("--experiment", metavar="NAME", help="only runs of this experiment")


def _add_request(command: argparse.ArgumentParser, *, required: bool = True) -> None:
    arms = command.add_argument_group("what is compared")
    for arm in ("baseline", "candidate"):
        arms.add_argument(f"--{arm}", nargs="+", required=required, metavar="KEY=VALUE", help=f"runs of the {arm} arm")
    arms.add_argument("--where", nargs="+", default=[], metavar="KEY=VALUE", help="conditions on both arms")
    arms.add_argument("--allow", nargs="+", default=[], metavar="KEY", help="further settings that may differ")
    arms.add_argument("--aa", nargs="+", metavar="KEY=VALUE", help="runs of identical arms (default: experiment=aa)")
    arms.add_argument("--margin", type=fraction, default=0.01, help="difference that does not matter (default: 1%%)")
    arms.add_argument("--loss-margin", type=fraction, default=0.005, help="the same for the loss (default: 0.5%%)")
    arms.add_argument("--grad-norm-margin", type=fraction, default=0.05, help="for the gradient norm (default: 5%%)")
    arms.add_argument(
        "--ignore-check", nargs="+", default=[], metavar="NAME", help="keep runs that failed these checks"
    )


def fraction(text: str) -> float:
    """``0.01`` or ``1%`` as 0.01; must lie between 0 and 1, both excluded."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"expected a fraction like 0.01 or 1%, not {text!r}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = parser().parse_args(arguments)
    from analysis import commands
    from harness.progress import printable

    try:
        return getattr(commands, options.command)(options)
    except ValueError as error:
        print(f"analysis: {printable(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
