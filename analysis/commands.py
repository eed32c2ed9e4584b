"""What each command does; see ``analysis.__main__`` for its options."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis import sources, text
from analysis.comparison import AA, Comparison, Request
from analysis.comparison import compare as make_comparison
from analysis.quantities import HEADLINE
from analysis.runs import Run
from analysis.selection import NO_RUNS, Selector
from harness.progress import printable
from harness.rundir import to_jsonable

NOT_COMPARABLE = 1


def compare(options: argparse.Namespace) -> int:
    """Print the verdict; 1 where the arms may not be compared."""
    comparison, _ = _compared(options)
    if options.json:
        print(text.encodable(json.dumps(text.to_data(comparison), indent=1, ensure_ascii=False)))
    else:
        print(text.to_text(comparison), end="")
    return 0 if comparison.comparable else NOT_COMPARABLE


def report(options: argparse.Namespace) -> int:
    """Write the report and record the comparison in MLflow; a server that is down costs a warning, not the report."""
    comparison, runs = _compared(options)
    if options.format == "md":
        page = text.to_markdown(comparison)
    else:
        from analysis.report import to_html

        page = to_html(comparison)
    _write(page, options.out or (None if options.format == "md" else Path("report.html")))
    if comparison.comparable and comparison.pairs and not options.no_mlflow:
        _record(comparison, runs, options)
    return 0 if comparison.comparable else NOT_COMPARABLE


def runs(options: argparse.Namespace) -> int:
    """List runs, one a line."""
    found = _read(options, None)
    where = Selector.parse(options.where)
    chosen = where.choose(found)
    if options.json:
        for run in chosen:
            print(text.encodable(json.dumps(to_jsonable(run_data(run)), ensure_ascii=False)))
    else:
        rows = [tuple(key.replace("_", " ") for key in run_data(chosen[0]))]
        rows += [tuple(_short(value) for value in run_data(run).values()) for run in chosen]
        print("\n".join(printable(line) for line in text.aligned(rows, numbers=(8, 9, 10))))
    return 0


def selftest(options: argparse.Namespace) -> int:
    """Known truths through the whole chain, with ``--real`` trainings made here, with ``--expect`` runs that exist."""
    if options.expect:
        return _expect(options)
    if options.real:
        from analysis import real_selftest

        return real_selftest.run()
    from analysis.selftest import CASES, run_case

    results = [run_case(case) for case in CASES]
    rows = [("", "injected truth", "throughput", "loss", "why")]
    rows += [("ok" if one.ok else "WRONG", one.case.truth, one.throughput, one.loss, one.detail) for one in results]
    print("\n".join(text.aligned(rows)))
    wrong = sum(not one.ok for one in results)
    print(f"\n{len(results) - wrong} of {len(results)} verdicts are right")
    return 1 if wrong else 0


def _expect(options: argparse.Namespace) -> int:
    if not options.baseline or not options.candidate:
        raise ValueError("--expect needs both arms: --baseline KEY=VALUE --candidate KEY=VALUE")
    comparison, _ = _compared(options)
    right = comparison.verdict == options.expect
    print(text.to_text(comparison))
    print(f"expected {options.expect}, found {comparison.verdict}: {'right' if right else 'WRONG'}")
    return 0 if right else 1


def make_request(options: argparse.Namespace) -> Request:
    """What the command line asks for. Raises ValueError for conditions that are none."""
    return Request(
        baseline=Selector.parse(options.baseline),
        candidate=Selector.parse(options.candidate),
        where=Selector.parse(options.where),
        allow=tuple(options.allow),
        margin=options.margin,
        loss_margin=options.loss_margin,
        grad_norm_margin=options.grad_norm_margin,
        ignore_checks=tuple(options.ignore_check),
        aa=Selector.parse(options.aa) if options.aa else AA,
    )


def run_data(run: Run) -> dict[str, object]:
    """One line of the list of runs."""
    return {
        "run": run.run_id,
        "experiment": run.experiment,
        "path": run.setting("path"),
        "kernel": run.setting("kernel"),
        "platform": run.setting("platform"),
        "rehearsal": run.rehearsal,
        "status": run.state,
        "phase": run.summary.get("phase"),
        "block": run.block,
        "replicate": run.replicate,
        "tokens_per_s": run.number(*HEADLINE.keys),
        "failed_checks": ", ".join(name for name, _ in run.failed_checks),
    }


def _compared(options: argparse.Namespace) -> tuple[Comparison, list[Run]]:
    request = make_request(options)
    found = _read(options, request)
    return make_comparison(found, request), found


def _read(options: argparse.Namespace, request: Request | None) -> list[Run]:
    if options.mlflow:
        found = sources.from_mlflow(options.mlflow, options.experiment, request)
    else:
        found = sources.from_directories(options.runs, options.experiment)
    if not found:
        raise ValueError(NO_RUNS)
    return found


def _record(comparison: Comparison, found: Sequence[Run], options: argparse.Namespace) -> None:
    from analysis.mlflow_parent import record
    from harness.mlflow_client import default_uri

    uri = options.record or options.mlflow or default_uri(options.runs)
    try:
        parent = record(comparison, uri)
    except Exception as error:  # whatever the server or its client does, the report is written
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        print(f"analysis: not recorded in MLflow ({uri}): {printable(first[:200])}", file=sys.stderr)
    else:
        print(f"recorded in MLflow ({uri}) as run {parent}", file=sys.stderr)


def _write(page: str, target: Path | None) -> None:
    page = text.encodable(page)
    if target is None:
        print(page, end="")
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot write {target}: {error.strerror}; name another file with --out FILE") from error
    print(f"wrote {target}", file=sys.stderr)


def _short(value: object) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:,.4g}"
        if isinstance(value, float) and value < 1000
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )
