"""``python -m harness.logs rows|events|summary FILE...``: a log as JSON on stdout, diagnostics on stderr."""

from __future__ import annotations

import argparse
import json
import sys

from harness.logs import Event, Rejected, Row, read_files


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0, or 1 with ``--strict`` and a rejected line, or 2 for wrong usage or an unreadable file."""
    parser = argparse.ArgumentParser(prog="python -m harness.logs", description=__doc__)
    parser.add_argument("what", choices=("rows", "events", "summary"))
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="plain, .gz or .zst; - is stdin; several are read in order",
    )
    parser.add_argument(
        "--metrics-rank",
        type=int,
        help="the rank whose rows count (default: the first that shows a loss)",
    )
    parser.add_argument(
        "--every-rank",
        action="store_true",
        help="the rows of every rank instead of one row per step",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit 1 if a line that looks like a step line was not understood",
    )
    args = parser.parse_args(argv)
    rejected = 0
    rows: list[Row] = []
    events: list[Event] = []
    try:
        for record in read_files(args.files, args.metrics_rank, every_rank=args.every_rank):
            if isinstance(record, Rejected):
                rejected += 1
                print(
                    f"line {record.line}: not understood: {record.reason}: {record.text}",
                    file=sys.stderr,
                )
            elif args.what == "summary":
                (rows if isinstance(record, Row) else events).append(record)  # type: ignore[arg-type]
            elif isinstance(record, Row) == (args.what == "rows"):
                print(json.dumps(record.to_json(), ensure_ascii=False))
    except OSError as error:
        print(f"cannot read: {error}", file=sys.stderr)
        return 2
    if args.what == "summary":
        print(json.dumps(_summary(rows, events), indent=1, ensure_ascii=False))
    return 1 if args.strict and rejected else 0


def _summary(rows: list[Row], events: list[Event]) -> dict:
    train = [row for row in rows if row.kind == "train"]
    counts: dict[str, int] = {}
    for event in events:
        counts[event.kind] = counts.get(event.kind, 0) + 1
    return {
        "rows": len(train),
        "validation_rows": len(rows) - len(train),
        "segments": len({row.segment for row in rows}),
        "first": train[0].to_json() if train else None,
        "last": train[-1].to_json() if train else None,
        "events": counts,
    }


if __name__ == "__main__":
    sys.exit(main())
