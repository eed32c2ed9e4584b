"""neuron-monitor's stream: recorded (written from the documented schema), damaged, absent, and dying."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import Any

import pytest

from harness.samplers import NeuronMonitor
from harness.samplers.neuron import parse_report

STREAM = Path(__file__).with_name("neuron_monitor.jsonl")


class Sink:
    def __init__(self) -> None:
        self.samples: list[dict[str, Any]] = []
        self.warnings: list[tuple[str, dict[str, object]]] = []

    def warn(self, kind: str, **data: object) -> None:
        self.warnings.append((kind, data))

    def wait(self, samples: int = 0, warnings: int = 0) -> None:
        limit = time.monotonic() + 10
        while (len(self.samples) < samples or len(self.warnings) < warnings) and time.monotonic() < limit:
            time.sleep(0.01)


@pytest.fixture
def sink() -> Sink:
    return Sink()


def program(folder: Path, script: str) -> str:
    path = folder / "neuron-monitor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def recorded(sink: Sink) -> list[dict[str, Any]]:
    monitor = NeuronMonitor(sink.samples.append, sink.warn)
    return [sample for line in STREAM.read_text().splitlines(keepends=True) for sample in monitor.read(line)]


def test_every_whole_report_is_a_sample(recorded: list[dict[str, Any]]) -> None:
    assert [sample["kind"] for sample in recorded] == ["neuron"] * 4
    assert [sample["neuron"]["cores_in_use"] for sample in recorded] == [0, 2, 1, 1]


def test_an_idle_machine_has_no_numbers_of_cores(recorded: list[dict[str, Any]]) -> None:
    idle = recorded[0]
    assert idle["by_core"] == []
    assert idle["neuron"] == {
        "runtimes": 0,
        "cores_in_use": 0,
        "device_count": 16,
        "neuroncore_per_device_count": 8,
        "logical_neuroncore_config": 2,
        "device_memory_gib": 96.0,
    }


def test_memory_of_a_core_with_its_parts(recorded: list[dict[str, Any]]) -> None:
    first, second = recorded[1]["by_core"]
    assert (first["core"], second["core"]) == (0, 1)
    assert (first["tensors_gib"], first["code_gib"], first["scratchpad_gib"], first["runtime_gib"]) == (
        6.0,
        1.5,
        2.0,
        0.25,
    )
    assert first["hbm_gib"] == 9.75
    neuron = recorded[1]["neuron"]
    assert neuron["hbm_gib"] == {"sum": 20.0, "max": 10.25}
    assert neuron["tensors_gib"] == {"sum": 12.5, "max": 6.5}
    assert neuron["device_used_gib"] == 20.0
    assert neuron["utilization_pct"] == {"min": 92.5, "mean": 95.5, "max": 98.5}
    assert neuron["latency_p50_s_max"] == 0.016
    assert neuron["executions_completed"] == 240


def test_a_core_that_disappears_leaves_nothing_behind(recorded: list[dict[str, Any]]) -> None:
    assert [core["core"] for core in recorded[2]["by_core"]] == [0]
    assert recorded[2]["neuron"]["hbm_gib"] == {"sum": 10.75, "max": 10.75}
    assert "latency_p50_s_max" not in recorded[2]["neuron"]


def test_missing_fields_stay_out(recorded: list[dict[str, Any]]) -> None:
    sample = recorded[3]
    assert sample["errors"] == ["runtime is not responding"]
    assert "flops_per_s" not in sample["neuron"]
    assert "tensors_gib" not in sample["by_core"][0]
    assert sample["by_core"][0]["hbm_gib"] == 3.75
    assert sample["neuron"]["errors_numerical"] == 3
    assert "device_count" not in sample["neuron"]


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"neuron_runtime_data": None},
        {"neuron_runtime_data": [None, 3, {}]},
        {"neuron_runtime_data": [{"report": {"neuroncore_counters": [1], "memory_used": "x"}}]},
        {"neuron_runtime_data": [{"report": {"neuroncore_counters": {"neuroncores_in_use": {"a": {}, "1": None}}}}]},
    ],
)
def test_reports_of_another_shape_are_read_without_numbers(report: dict[str, Any]) -> None:
    parsed = parse_report(report)
    assert parsed["by_core"] == []
    assert parsed["neuron"]["cores_in_use"] == 0


def test_a_running_monitor(sink: Sink, tmp_path: Path) -> None:
    monitor = NeuronMonitor(sink.samples.append, sink.warn, command=program(tmp_path, f"cat {STREAM}; exec sleep 60"))
    assert monitor.start()
    sink.wait(samples=4)
    monitor.stop()
    assert len(sink.samples) == 4
    assert sink.warnings == [
        ("monitor", {"name": "neuron-monitor", "message": "2 lines of neuron-monitor were no JSON object"})
    ]


def test_an_absent_monitor_is_one_warning(sink: Sink) -> None:
    monitor = NeuronMonitor(sink.samples.append, sink.warn, command="no-such-monitor")
    assert not monitor.start()
    monitor.stop()
    assert [(kind, data["name"]) for kind, data in sink.warnings] == [("monitor", "neuron-monitor")]
    assert "not on PATH" in str(sink.warnings[0][1]["message"])


def test_a_monitor_that_dies_is_one_warning(sink: Sink, tmp_path: Path) -> None:
    monitor = NeuronMonitor(sink.samples.append, sink.warn, command=program(tmp_path, f"head -n 2 {STREAM}; exit 3"))
    assert monitor.start()
    sink.wait(samples=2, warnings=1)
    monitor.stop()
    monitor.stop()
    assert len(sink.samples) == 2
    assert len(sink.warnings) == 1
    assert "exit code 3" in str(sink.warnings[0][1]["message"])


def test_a_monitor_that_ignores_sigterm_is_ended(sink: Sink, tmp_path: Path) -> None:
    script = f"trap '' TERM; head -n 1 {STREAM}; while :; do sleep 0.1; done"
    monitor = NeuronMonitor(sink.samples.append, sink.warn, command=program(tmp_path, script))
    assert monitor.start()
    sink.wait(samples=1)
    monitor.stop()
    assert monitor._process is not None
    assert monitor._process.poll() is not None
    assert sink.warnings == []


def test_a_full_disk_does_not_end_the_monitor(sink: Sink, tmp_path: Path) -> None:
    def full(sample: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    monitor = NeuronMonitor(full, sink.warn, command=program(tmp_path, f"head -n 2 {STREAM}; exec sleep 60"))
    assert monitor.start()
    limit = time.monotonic() + 10
    while monitor.errors < 2 and time.monotonic() < limit:
        time.sleep(0.01)
    monitor.stop()
    assert (monitor.errors, sink.warnings) == (2, [])
