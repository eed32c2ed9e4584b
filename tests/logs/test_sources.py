"""Full precision from TensorBoard events and JSONL metrics beside a log, and only where they agree with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.logs import Row, read_files
from harness.logs.sources import sources_beside

PREFIX = "[rank0]:[titan] 2026-03-04 05:06:07,008 - root - INFO - "
EXACT = {
    1: {"loss": 8.100809097290039, "grad_norm": 1.3504964113235474, "tps": 787.8113490029646, "mfu": 0.0067},
    2: {"loss": 8.050000190734863, "grad_norm": 1.25, "tps": 4748.160288697184, "mfu": 0.0408},
}


def line(step: int, loss: str | None = None) -> str:
    exact = EXACT[step]
    shown = f"{exact['loss']:8.5f}" if loss is None else loss
    return (
        f"{PREFIX}step: {step:2}  loss: {shown}  grad_norm: {exact['grad_norm']:7.4f}  memory:  0.16GiB(0.27%)  "
        f"tps: {round(exact['tps']):,}  tflops: 0.02  mfu: {exact['mfu']:.2f}%\n"
    )


def rows(path: Path, **options: Any) -> list[Row]:
    return [record for record in read_files(path, **options) if isinstance(record, Row)]


def write_metrics(folder: Path, **changed: float) -> None:
    folder.mkdir(exist_ok=True)
    records = []
    for step, exact in EXACT.items():
        extras = {"throughput(tps)": exact["tps"], "mfu(%)": exact["mfu"]}
        records.append(
            {"step": step, "loss": exact["loss"], "grad_norm": exact["grad_norm"], "extras": extras, **changed}
        )
    (folder / "metrics.jsonl").write_text("\n".join([*map(json.dumps, records), "{broken", "[]"]) + "\n")


def test_jsonl_metrics_replace_what_is_rounded_and_the_row_says_so(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(line(1) + line(2))
    write_metrics(tmp_path / "outputs")
    first, second = rows(log)
    assert (first.loss, first.grad_norm, first.tps) == (8.100809097290039, 1.3504964113235474, 787.8113490029646)
    assert (second.loss, second.mfu) == (8.050000190734863, 0.0408)
    assert first.memory_gib == 0.16  # not in the source: as printed
    assert first.to_json()["source"] == "metrics_jsonl"
    assert "source" not in rows(log, better=False)[0].to_json()


def test_another_runs_metrics_change_nothing(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(line(1))
    write_metrics(tmp_path, loss=8.2)
    (row,) = rows(log)
    assert (row.loss, row.source) == (8.10081, "console")


def test_a_value_that_does_not_round_to_the_printed_one_is_not_taken(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(line(1).replace("tps: 788", "tps: 790"))
    write_metrics(tmp_path)
    (row,) = rows(log)
    assert (row.loss, row.tps, row.source) == (8.100809097290039, 790, "metrics_jsonl")


def test_a_hidden_loss_comes_from_the_source_if_all_else_agrees(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(line(1, "-4.00000"))
    write_metrics(tmp_path)
    (row,) = rows(log)
    assert (row.loss, row.flags) == (8.100809097290039, ())
    write_metrics(tmp_path, grad_norm=1.5)
    (row,) = rows(log)
    assert (row.loss, row.flags, row.source) == (None, ("loss_hidden",), "console")


def test_tensorboard_events(tmp_path: Path) -> None:
    writer_module = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    tags = {"loss": "loss_metrics/global_avg_loss", "grad_norm": "grad_norm", "tps": "throughput(tps)", "mfu": "mfu(%)"}
    writer = writer_module.EventFileWriter(str(tmp_path / "outputs" / "tb" / "20260304-0506"))
    for step, exact in EXACT.items():
        for column, tag in tags.items():
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=exact[column])])
            writer.add_event(Event(step=step, summary=summary, wall_time=1.0))
        value = Summary.Value(tag="validation_metrics/loss", simple_value=8.25)
        writer.add_event(Event(step=step, summary=Summary(value=[value]), wall_time=1.0))
    writer.close()
    log = tmp_path / "train.log"
    log.write_text(line(1) + line(2) + PREFIX + "validate step:  2  loss:  8.2500  memory:  0.16GiB(0.27%)  tps: 12\n")
    first, second, validation = rows(log)
    assert first.loss == 8.100809097290039  # float32 holds it exactly
    assert first.tps == pytest.approx(787.8113490029646, rel=1e-7)
    assert second.grad_norm == 1.25
    assert {row.source for row in (first, second, validation)} == {"tensorboard"}


def test_a_folder_without_better_sources_has_none(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert sources_beside(tmp_path / "train.log") == []
