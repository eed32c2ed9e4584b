"""Read torchtitan logs of any age: rows and events as JSON Lines, or a summary as JSON, on standard output.

Lines that look like step lines but were not understood are reported on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from harness.logs import Event, Record, Rejected, Row, read_files


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0; 1 with ``--strict`` and a rejected line; 2 for wrong usage or a file that cannot be read."""
    args = _parser().parse_args(argv)
    records = read_files(args.files, args.metrics_rank, every_rank=args.every_rank, better=not args.text_only)
    rejected: list[Rejected] = []
    if "-" in args.files:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        known = _report(records, rejected)
        if args.what == "summary":
            print(json.dumps(_summary(list(known), len(rejected)), indent=1, ensure_ascii=False))
        else:
            wanted = Row if args.what == "rows" else Event
            for record in known:
                if isinstance(record, wanted):
                    print(json.dumps(record.to_json(), ensure_ascii=False))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"harness.logs: cannot read {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 1 if args.strict and rejected else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.logs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("rows", "events", "summary"))
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="plain, gzip or zstd; - is stdin; several make one log"
    )
    parser.add_argument("--metrics-rank", type=int, help="whose rows count (default: the first rank that shows a loss)")
    parser.add_argument("--every-rank", action="store_true", help="rows of every rank instead of one per step")
    parser.add_argument(
        "--text-only", action="store_true", help="do not look for TensorBoard or JSONL metrics beside it"
    )
    parser.add_argument("--strict", action="store_true", help="exit 1 if a step-like line was not understood")
    return parser


def _report(records: Iterator[Record], rejected: list[Rejected]) -> Iterator[Row | Event]:
    """Pass on what was understood; put the rest on stderr and into ``rejected``."""
    for record in records:
        if isinstance(record, Rejected):
            rejected.append(record)
            print(f"line {record.line}: not understood, {record.reason}: {record.text}", file=sys.stderr)
        else:
            yield record


def _summary(records: list[Row | Event], rejected: int) -> dict[str, Any]:
    from harness.summary import summarize

    rows = [record for record in records if isinstance(record, Row)]
    events = [record for record in records if isinstance(record, Event)]
    return {
        **summarize(rows, events),
        "rows": dict(Counter(row.kind for row in rows)),
        "events": dict(Counter(event.kind for event in events)),
        "rejected": rejected,
    }


if __name__ == "__main__":
    sys.exit(main())
