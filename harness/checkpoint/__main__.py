"""Look at checkpoints in Hugging Face safetensors: what one holds, whether it is sound, how two differ.

inspect reads headers only. verify and diff read every value, in pieces: memory stays below 1 GB whatever the size.
verify also lets Transformers load the checkpoint, where it is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.progress import printable

EXIT_CODES = """\
Exit codes: 0 sound, or equal; 1 a check failed, the two differ, or the weights cannot be read; 2 wrong usage."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    directories = [options.directory, *([options.other] if options.what == "diff" else [])]
    if absent := [str(place) for place in directories if not place.is_dir()]:
        _complain(f"no such directory: {', '.join(absent)}")
        return 2
    try:
        return {"inspect": _inspect, "diff": _diff, "verify": _verify}[options.what](options)
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, ValueError) as error:
        _complain(str(error))
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.checkpoint",
        description=__doc__,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="what", required=True, metavar="inspect | verify | diff")
    inspect = commands.add_parser("inspect", help="files, tensors, types, config, and whether the keys fit")
    verify = commands.add_parser("verify", help="headers, keys, every value, the tied head, and a load by Transformers")
    diff = commands.add_parser("diff", help="keys, shapes, config and the largest difference per tensor")
    for command in (inspect, verify, diff):
        command.add_argument("directory", type=Path, metavar="DIR", help="directory with safetensors and config.json")
        command.add_argument("--json", action="store_true", help="one JSON object on standard output")
    diff.add_argument("other", type=Path, metavar="DIR", help="the one to compare with")
    diff.add_argument(
        "--atol", type=_tolerance, default=0.0, metavar="X", help="differences up to X are none (default: 0)"
    )
    diff.add_argument("--all", action="store_true", help="list every tensor that differs")
    verify.add_argument("--no-reload", action="store_true", help="do not load it with Transformers")
    return parser


def _tolerance(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: a number of at least 0 was expected")
    return value


def _inspect(options: argparse.Namespace) -> int:
    from harness.checkpoint.inspect import describe

    found = describe(options.directory)
    if options.json:
        print(json.dumps(found.to_json(), indent=1))
        return 0
    from harness.checkpoint.show import show_description
    from harness.terminal import make_console

    show_description(make_console(), found)
    return 0


def _diff(options: argparse.Namespace) -> int:
    from harness.checkpoint.diff import compare
    from harness.checkpoint.show import progress_bar, show_comparison
    from harness.terminal import make_console

    with progress_bar(make_console(stderr=True), "comparing") as progress:
        found = compare(options.directory, options.other, tolerance=options.atol, progress=progress)
    if options.json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        show_comparison(make_console(), found, everything=options.all)
    return 0 if found.equal else 1


def _verify(options: argparse.Namespace) -> int:
    from harness.checkpoint.show import progress_bar, show_findings
    from harness.checkpoint.verify import FAIL, verify
    from harness.terminal import make_console

    with progress_bar(make_console(stderr=True), "reading") as progress:
        findings = verify(options.directory, reload=not options.no_reload, progress=progress)
    passed = all(finding.verdict != FAIL for finding in findings)
    if options.json:
        checks = [finding.to_json() for finding in findings]
        print(json.dumps({"directory": str(options.directory), "passed": passed, "checks": checks}, indent=1))
    else:
        show_findings(make_console(), options.directory, findings)
    return 0 if passed else 1


def _complain(text: str) -> None:
    print(f"harness.checkpoint: {printable(text)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
