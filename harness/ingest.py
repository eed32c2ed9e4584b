"""``python -m harness.ingest FILE... --set path=... --set kernel=...``: adopt a log from elsewhere as a run (no torch).

The run is named after the log's content, so the same log gives the same run however often it is adopted.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import rundir
from harness.checks import Check, completed_log, losses_finite
from harness.logs.files import pieces
from harness.paths import load_path, path_names
from harness.phases import PhasesConfig
from harness.privacy import redact
from harness.recorder import Recorder
from harness.run_facts import RunFacts, complete
from harness.rundir import RunDir, now, own_status
from harness.shapes import ModelShape
from harness.summary import summarize

SHORT = {
    "path": "path.name",
    "kernel": "kernel.name",
    "platform": "platform.name",
    "init": "init.mode",
    "data": "data.name",
    "ranks": "platform.num_ranks",
    "lnc": "platform.lnc",
    "chips": "platform.num_chips",
    "chip": "platform.chip",
    "price_per_hour": "platform.price_per_hour",
    "price_date": "platform.price_date",
    **{name: f"train.{name}" for name in (
        "steps", "seq_len", "local_batch_size", "global_batch_size", "dtype", "seed", "learning_rate", "log_freq",
    )},
    **{name: name for name in ("replicate", "block", "order", "rehearsal")},
}  # fmt: skip
"""What ``--set`` takes, and where it stands in a run's configuration."""


class IngestError(ValueError):
    """A log or setting that cannot be adopted."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.ingest", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="plain, .gz or .zst; - is stdin; read in this order")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=f"one of {', '.join(SHORT)}")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="directory of all runs (default: runs)")
    parser.add_argument("--experiment-name", default="ingested", help="directory below --runs and MLflow experiment")
    parser.add_argument("--uri", help="MLflow tracking URI (default: the database in --runs)")
    parser.add_argument("--no-tracking", action="store_true", help="the run directory only")
    options = parser.parse_args(arguments)
    try:
        run, is_new = ingest(options.files, parse_settings(options.set), options.runs, options.experiment_name)
    except (IngestError, OSError) as error:
        print(f"harness.ingest: {error}", file=sys.stderr)
        return 2
    summary = run.summary()
    print(f"{run.path}: {summary['steps']} steps, {summary['phase']}{'' if is_new else ' (was adopted before)'}")
    if options.no_tracking:
        return 0
    from harness.sync import sync

    return sync([run], options.uri, everything=True)


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """``["ranks=64"]`` as the nested configuration ``{"platform": {"num_ranks": 64}}``."""
    import yaml

    config: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in SHORT:
            raise IngestError(f"--set {pair}: KEY=VALUE was expected, KEY one of {', '.join(SHORT)}")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        *parents, leaf = SHORT[name].split(".")
        node = config
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    for group, key in (("platform", "num_ranks"), ("train", "seq_len"), ("train", "global_batch_size")):
        value = config.get(group, {}).get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise IngestError(f"{key}={value}: a whole number of at least 1 was expected")
    return config


def ingest(files: Sequence[str], config: Mapping[str, Any], runs: Path, experiment_name: str) -> tuple[RunDir, bool]:
    """The run directory of a log, and whether it is new.

    Raises:
        IngestError: no step line in the log, or the same log adopted before under other settings.
    """
    place = runs / experiment_name
    place.mkdir(parents=True, exist_ok=True)
    draft = RunDir(place / f".ingest-{os.getpid()}")
    draft.path.mkdir(exist_ok=True)
    try:
        recorder, digest = _read(files, draft)
        run = RunDir(place / f"ingested-{digest[:12]}")
        if run.status() is not None:
            return _adopted_before(run, config), False
        _complete(draft, recorder, config, files, digest)
        draft.path.rename(run.path)
        return run, True
    finally:
        _remove(draft.path)


def _read(files: Sequence[str], draft: RunDir) -> tuple[Recorder, str]:
    """Rows, events and the scrubbed log in ``draft``; and the digest of what was read."""
    recorder, digest, last = Recorder(draft), hashlib.sha256(), b"\n"
    try:
        for index, file in enumerate(files):
            if index and last != b"\n":
                recorder.feed(b"\n")
            for data in pieces(file):
                digest.update(data)
                last = data[-1:]
                recorder.feed(data)
    finally:
        recorder.close()
    if not any(row.kind == "train" for row in recorder.rows):
        raise IngestError(f"{', '.join(files)}: {_why_no_row(recorder)}")
    return recorder, digest.hexdigest()


def _why_no_row(recorder: Recorder) -> str:
    if recorder.rows:
        return "there are validation lines, but no training step line"
    if recorder.rejected:
        return f"{recorder.rejected} lines look like step lines, none is understood (python -m harness.logs rows FILE)"
    kinds = sorted({event.kind for event in recorder.events})
    return f"there is no step line (understood: {', '.join(kinds[:6]) or 'nothing'}); is it a torchtitan log?"


def _adopted_before(run: RunDir, config: Mapping[str, Any]) -> RunDir:
    before = run.manifest().get("ingested", {})
    if config and before != redact(dict(config)):
        raise IngestError(f"this log is {run.path} already, with other settings ({before}): remove it to adopt it anew")
    return run


def _complete(run: RunDir, recorder: Recorder, config: Mapping[str, Any], files: Sequence[str], digest: str) -> None:
    """Everything a run directory has besides rows, events and log."""
    import yaml

    facts = log_facts(recorder, config)
    summary = summarize(recorder.rows, recorder.events, facts)
    checks = log_checks(recorder)
    finished = checks[0].verdict != "fail"
    clock = [row.time for row in recorder.rows if row.time] or [now()]
    known = {event.kind: event.data for event in recorder.events}
    full = {**config, "phases": {"rule": facts.phases.rule}, "experiment_name": run.path.parent.name}
    manifest = {
        "created": now(),
        "source": "ingested",
        "run_name": f"{Path(files[0]).name} {digest[:6]}",
        "files": [Path(file).name for file in files],
        "sha256": digest,
        "ingested": dict(config),
        "versions": {"torchtitan": known["version"]["version"]} if "version" in known else {},
        "shape": _shape_record(facts.shape, known),
    }
    run.write_text(rundir.CONFIG, yaml.safe_dump(redact(full), sort_keys=False))
    run.write_json(rundir.MANIFEST, redact(manifest))
    run.write_json(rundir.SUMMARY, summary)
    run.write_json(rundir.CHECKS, checks)
    state = rundir.FINISHED if finished else rundir.FAILED
    reason = "" if finished else checks[0].evidence
    status = own_status(state, reason=reason, started=_with_zone(clock[0]), exit_code=0 if finished else 1)
    run.write_status(replace(status, ended=_with_zone(clock[-1])))


def log_facts(recorder: Recorder, config: Mapping[str, Any]) -> RunFacts:
    """What the settings say, completed from the log; the path's shape only if the log counts its parameters."""
    platform, train = config.get("platform", {}), config.get("train", {})
    seq_len, batch = train.get("seq_len"), train.get("global_batch_size")
    facts = RunFacts(
        phases=PhasesConfig(),
        ranks=platform.get("num_ranks"),
        chips=platform.get("num_chips"),
        tokens_per_step=batch * seq_len if batch and seq_len else None,
        seq_len=seq_len,
        shape=_shape(config, recorder),
        device=platform.get("chip") or "",
        lnc=platform.get("lnc"),
        dtype=train.get("dtype"),
        price_per_hour=platform.get("price_per_hour"),
        price_date=str(platform["price_date"]) if platform.get("price_date") else None,
        rehearsal=bool(config.get("rehearsal")),
    )
    return complete(facts, recorder.events)


def _shape(config: Mapping[str, Any], recorder: Recorder) -> ModelShape | None:
    name = config.get("path", {}).get("name")
    if name not in path_names():
        return None
    shape = load_path(name).full_shape()
    counted = [event.data.get("parameters") for event in recorder.events if event.kind == "model_size"]
    return shape if counted and counted[0] == shape.num_params() else None


def _shape_record(shape: ModelShape | None, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    from dataclasses import asdict

    counted = {"num_params": known["model_size"]["parameters"]} if "model_size" in known else {}
    return (asdict(shape) if shape else {}) | counted


def log_checks(recorder: Recorder) -> list[Check]:
    """What a foreign log can prove by itself."""
    train = [row for row in recorder.rows if row.kind == "train"]
    return [completed_log(train, recorder.events), losses_finite(train)]


def _with_zone(time: str) -> str:
    """A log's time, which is local to a machine unknown, as this machine's time with its zone."""
    from datetime import datetime

    return datetime.fromisoformat(time).astimezone().isoformat(timespec="milliseconds")


def _remove(path: Path) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
