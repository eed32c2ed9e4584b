"""nvidia-smi's loop output: ticks become samples, what a device does not report stays out."""

from __future__ import annotations

from typing import Any

from harness.samplers import NvidiaSmi
from harness.samplers.nvidia import parse_line

TICKS = """\
0, 97, 70144, 81559, 612.31, 1830, 61
1, 88, 71680, 81559, 598.02, 1845, 59
0, 99, 70144, 81559, 655.00, 1830, 62
1, 90, 71680, 81559, [N/A], 1845, 59
"""


def read(text: str) -> tuple[list[dict[str, Any]], NvidiaSmi]:
    monitor = NvidiaSmi(lambda sample: None, lambda kind, **data: None)
    return [sample for line in text.splitlines(keepends=True) for sample in monitor.read(line)], monitor


def test_one_sample_per_tick() -> None:
    samples, monitor = read(TICKS)
    assert [sample["nvidia"]["devices"] for sample in samples] == [2, 2]
    assert samples[0]["nvidia"]["utilization_pct"] == {"min": 88.0, "mean": 92.5, "max": 97.0}
    assert samples[0]["nvidia"]["memory_used_gib"] == {"min": 68.5, "mean": 69.25, "max": 70.0}
    assert samples[1]["nvidia"]["power_w"] == {"min": 655.0, "mean": 655.0, "max": 655.0}
    assert "power_w" not in samples[1]["by_device"][1]
    assert monitor.rest() == []
    assert monitor.complaint() == ""


def test_a_tick_is_complete_as_soon_as_the_number_of_devices_is_known() -> None:
    samples, monitor = read(TICKS.rsplit("\n", 2)[0] + "\n")
    assert len(samples) == 1
    assert [device["index"] for device in monitor.rest()[0]["by_device"]] == [0]


def test_lines_of_another_shape_are_counted() -> None:
    samples, monitor = read("NVIDIA-SMI has failed\n0, 97\n" + TICKS)
    assert len(samples) == 2
    assert monitor.complaint() == "2 lines of nvidia-smi were not understood"


def test_nothing_is_reported_as_zero_that_is_not_there() -> None:
    assert parse_line("3, [N/A], [N/A], 81559, [Not Supported], 0, 40") == {
        "index": 3,
        "memory_total_gib": 79.647,
        "sm_clock_mhz": 0.0,
        "temperature_c": 40.0,
    }


def test_the_command_asks_for_what_is_parsed() -> None:
    command = NvidiaSmi(lambda sample: None, lambda kind, **data: None, interval_s=1.5).command
    assert command[0] == "nvidia-smi"
    assert command[1].startswith("--query-gpu=index,utilization.gpu,memory.used,memory.total,")
    assert command[-1] == "--loop-ms=1500"
