"""Which backend runs, from where the choice comes, and what is counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.logs import Event, LogReader
from kernels import backend
from kernels.backend import Calls, Execution

VARIABLES = ("PILOT_KERNEL_BACKEND", "PILOT_KERNEL_LNC", "NEURON_LOGICAL_NC_CONFIG")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with backend.isolated("reference", lnc=2):
        monkeypatch.setattr(backend, "_execution", None)
        yield


def test_without_a_word_it_is_the_reference_on_two_cores() -> None:
    assert backend.execution() == Execution("reference", 2)


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOT_KERNEL_BACKEND", "simulator")
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    assert backend.execution() == Execution("simulator", 1)
    monkeypatch.setenv("PILOT_KERNEL_LNC", "2")
    assert backend.use_backend("reference") == Execution("reference", 2)


@pytest.mark.parametrize(
    ("name", "lnc", "message"),
    [
        ("gpu", None, "kernel backend 'gpu': one of auto, reference, simulator, neuron was expected"),
        ("reference", 3, "LNC=3: a logical NeuronCore has 1 or 2 physical cores"),
    ],
)
def test_an_impossible_choice_is_refused(name: str, lnc: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        backend.use_backend(name, lnc=lnc)


def test_an_impossible_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "four")
    with pytest.raises(ValueError, match="LNC='four' in the environment: 1 or 2 was expected"):
        backend.execution()


def test_an_absent_device_is_an_error_and_no_fallback() -> None:
    with pytest.raises(RuntimeError, match="kernel backend neuron is not available: import torch_neuronx fails"):
        backend.use_backend("neuron")
    assert backend.execution().backend == "reference"


def test_reports_say_what_ran_and_what_was_asked_for_but_never_ran() -> None:
    backend.use_backend("reference")
    backend.request("nki_moe")
    backend.request("nki_rope")
    for _ in range(3):
        backend.count("nki_rope", "forward", "reference")
    backend.count("nki_rope", "backward", "reference")
    backend.count("nki_rope", "forward", "simulator")
    lines: list[str] = []
    backend.report(lines.append)
    assert lines == [
        "[pilot] kernel nki_moe backend=reference forward=0 backward=0",
        "[pilot] kernel nki_rope backend=reference forward=3 backward=1",
        "[pilot] kernel nki_rope backend=simulator forward=1 backward=0",
    ]
    assert backend.calls("nki_rope") == Calls(4, 1)
    backend.reset_counts()
    assert backend.report_lines() == []


def test_a_check_leaves_no_trace() -> None:
    backend.use_backend("reference", lnc=1)
    backend.count("nki_rope", "forward", "reference")
    with backend.isolated("simulator", lnc=2):
        backend.count("nki_rope", "forward", "simulator")
        assert backend.execution() == Execution("simulator", 2)
        assert backend.calls("nki_rope") == Calls(1, 0)
    assert backend.execution() == Execution("reference", 1)
    assert backend.report_lines() == ["[pilot] kernel nki_rope backend=reference forward=1 backward=0"]


def test_the_log_reader_makes_an_event_of_each_line() -> None:
    backend.request("nki_rope")
    backend.count("nki_moe", "forward", "simulator")
    prefix = "[rank0]:[titan] 2026-11-30 04:46:26,916 - root - INFO - "
    reader = LogReader()
    records = reader.feed("".join(f"{prefix}{line}\n" for line in backend.report_lines()).encode()) + reader.close()
    found = [(record.kind, record.data) for record in records if isinstance(record, Event)]
    assert found == [
        ("kernel_calls", {"name": "nki_moe", "backend": "simulator", "forward": 1, "backward": 0}),
        ("kernel_calls", {"name": "nki_rope", "backend": "reference", "forward": 0, "backward": 0}),
    ]
