"""``python -m kernels check``: the gate on the command line, as a table or as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import sys
from collections.abc import Sequence
from typing import Any

from kernels.backend import BACKENDS
from kernels.check.gate import DTYPES, KERNELS, Check, run
from kernels.check.shapes import ExpertShape, RopeShape, Shape

SHAPES: dict[str, type[Shape]] = {"nki_rope": RopeShape, "nki_moe": ExpertShape}
DESCRIPTION = """Hold NKI kernels against their PyTorch references, forward and every gradient, on random inputs.
Exit status: 0 all within tolerance, 1 a miss, 2 wrong usage."""


def parser() -> argparse.ArgumentParser:
    """The arguments of ``python -m kernels``."""
    top = argparse.ArgumentParser(prog="python -m kernels", description="Kernels of this project.")
    commands = top.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="compare kernels with their references", description=DESCRIPTION)
    check.add_argument("kernels", nargs="*", metavar="NAME", help=f"{' or '.join(KERNELS)}; default both")
    check.add_argument("--dtype", default=",".join(DTYPES), help="comma-separated (default: %(default)s)")
    check.add_argument("--lnc", default="1,2", help="physical cores per logical core (default: %(default)s)")
    check.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=N,...",
        help=f"may be repeated; nki_rope: {RopeShape.example}; nki_moe: {ExpertShape.example}",
    )
    check.add_argument("--backend", default="auto", help=f"auto (device, else simulator), {', '.join(BACKENDS)}")
    check.add_argument("--seed", type=int, help="of the inputs (default: a new one, which is printed)")
    check.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    args = parser().parse_args(argv)
    seed = random.randrange(2**31) if args.seed is None else args.seed
    try:
        checks = _run(args, seed)
    except (ValueError, RuntimeError) as error:
        print(f"kernels check: {error}", file=sys.stderr)
        return 2
    passed = all(check.passed for check in checks)
    if args.json:
        print(json.dumps({"passed": passed, "seed": seed, "checks": [as_json(check) for check in checks]}))
    else:
        print_table(checks, seed)
    return 0 if passed else 1


def _run(args: argparse.Namespace, seed: int) -> list[Check]:
    names = args.kernels or list(KERNELS)
    for name in names:
        _one_of("kernel", name, KERNELS)
    if args.shape and len(names) > 1:
        raise ValueError("--shape belongs to one kernel: name it, e.g. check nki_rope --shape seq=512")
    _one_of("backend", args.backend, ("auto", *BACKENDS))
    dtypes, lncs = args.dtype.split(","), args.lnc.split(",")
    for dtype in dtypes:
        _one_of("dtype", dtype, DTYPES)
    for lnc in lncs:
        _one_of("lnc", lnc, ("1", "2"))
    return [
        check
        for name in names
        for check in run(
            name,
            shapes=[SHAPES[name].parse(text) for text in args.shape],
            dtypes=dtypes,
            lncs=[int(lnc) for lnc in lncs],
            where=args.backend,
            seed=seed,
        )
    ]


def _one_of(what: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{what} {value!r}: one of {', '.join(allowed)} was expected")


def as_json(check: Check) -> dict[str, Any]:
    """A check as JSON values; NaN and infinities as strings, which JSON does not have."""
    values = dataclasses.asdict(check) | {"passed": check.passed, "metric": check.metric}
    return {
        key: value if not isinstance(value, float) or math.isfinite(value) else str(value)
        for key, value in values.items()
    }


def print_table(checks: Sequence[Check], seed: int) -> None:
    """One line per result, then the verdict."""
    rows = [("kernel", "what", "dtype", "lnc", "max abs", "max rel", "tolerance", "", "shape")]
    rows += [
        (
            check.kernel,
            check.what,
            check.dtype,
            str(check.lnc),
            f"{check.max_abs:.2g}",
            f"{check.max_rel:.2g}",
            f"{check.measure.removeprefix('max_')} {check.tolerance:g}",
            "ok" if check.passed else "MISS",
            check.shape,
        )
        for check in checks
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    reasons = {f"{check.measure} {check.tolerance:g} {check.kernel}: {check.reason}" for check in checks}
    print("\ntolerances  " + "\n            ".join(sorted(reasons)))
    misses = sum(not check.passed for check in checks)
    verdict = "all within tolerance" if not misses else f"{misses} of {len(checks)} outside tolerance"
    print(f"{verdict}; backend {checks[0].backend}, seed {seed}")
