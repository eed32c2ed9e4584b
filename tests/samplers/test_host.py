"""The host sampler on this machine: real processes, real numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from harness.projection import flatten
from harness.samplers import HostSampler, find_contention, samplers_for
from harness.samplers.processes import ProcessTimes, busiest, tree

SPIN = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPIN!r}])"


@pytest.fixture
def spinner() -> Any:
    """A process whose child keeps a core busy, like torchrun and a rank."""
    process = subprocess.Popen([sys.executable, "-c", PARENT], start_new_session=True)
    limit = time.monotonic() + 10
    while len(tree(process.pid)) < 2 and time.monotonic() < limit:
        time.sleep(0.02)
    yield process
    os.killpg(process.pid, 9)
    process.wait()


def take(num_samples: int, **arguments: Any) -> list[dict[str, Any]]:
    samples: list[dict[str, Any]] = []
    sampler = HostSampler(samples.append, interval_s=0.3, **arguments)
    sampler.start()
    limit = time.monotonic() + 15
    while len(samples) < num_samples and time.monotonic() < limit:
        time.sleep(0.02)
    sampler.stop()
    assert sampler.errors == 0
    return samples


def test_a_sample_of_this_machine() -> None:
    first, last = take(1)[:1] + take(1)[-1:]
    host = last["host"]
    assert (last["kind"], host["cores"]) == ("host", os.cpu_count())
    assert len(host["cpu_pct_by_core"]) == host["cores"]
    assert 0 <= host["cpu_pct"] <= 100
    assert host["memory_used_gib"] > 0.05
    assert last["time"] >= first["time"]
    names = {name for name, _ in flatten(last)}
    assert {"host/cpu_pct", "host/memory_used_gib", "ranks/rss_gib", "others/cores"} <= names
    assert not any("by_core" in name or "busiest" in name for name in names)


def test_the_tree_of_the_training_is_the_ranks(spinner: subprocess.Popen) -> None:
    samples = take(4, root_pid=spinner.pid)
    ranks = samples[-1]["ranks"]
    assert ranks["processes"] == 2
    assert ranks["cores"] > 0.3  # of one core, on a machine that may be busy
    assert ranks["rss_gib"] > ranks["rss_largest_gib"] > 0
    assert samples[-1]["harness"]["cores"] < ranks["cores"]


def test_what_belongs_to_nobody_is_others() -> None:
    """A process that has left this one's tree competes with the run."""
    spin = f"subprocess.Popen([sys.executable, '-c', {SPIN!r}], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)"
    orphan = f"import subprocess, sys; print({spin}.pid)"
    pid = int(subprocess.run([sys.executable, "-c", orphan], capture_output=True, text=True, check=True).stdout)
    try:
        assert pid not in tree(os.getpid())
        samples = take(4)
        assert any(busy["pid"] == pid for sample in samples for busy in sample["others"]["busiest"])
        assert samples[-1]["others"]["cores"] > 0.3
    finally:
        os.kill(pid, 9)
    crowded = [sample | {"others": sample["others"] | {"cores": 1.0}} for sample in samples]
    assert str(pid) in find_contention(crowded)[0].message


def test_a_process_that_ends_between_two_looks() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert ProcessTimes().look({process.pid, os.getpid()}, 1.0).count == 1


def test_the_tree_of_a_dead_process_is_empty_or_itself() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert tree(process.pid) <= {process.pid}


def test_busiest_leaves_out_the_run() -> None:
    assert all(busy.pid != os.getpid() for busy in busiest({os.getpid()}, ProcessTimes(), 1.0, 0.0))


def test_a_write_that_fails_is_counted_and_sampling_goes_on() -> None:
    def full(sample: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    sampler = HostSampler(full, interval_s=0.05)
    sampler.start()
    limit = time.monotonic() + 10
    while sampler.errors < 3 and time.monotonic() < limit:
        time.sleep(0.01)
    sampler.stop()
    assert sampler.errors >= 3


def test_stop_takes_a_last_sample_and_ends_the_thread() -> None:
    samples: list[dict[str, Any]] = []
    sampler = HostSampler(samples.append, interval_s=60)
    sampler.start()
    sampler.stop()
    sampler.stop()
    assert len(samples) == 1
    assert not any(thread.name == "host-sampler" for thread in threading.enumerate())
    HostSampler(samples.append).stop()


def test_an_interval_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="above 0"):
        HostSampler(print, interval_s=0)


@pytest.mark.parametrize(
    ("device", "names"),
    [("cpu", ["HostSampler"]), ("neuron", ["HostSampler", "NeuronMonitor"]), ("cuda", ["HostSampler", "NvidiaSmi"])],
)
def test_samplers_of_a_platform(device: str, names: list[str]) -> None:
    found = samplers_for(device, print, lambda kind, **data: None)
    assert [type(sampler).__name__ for sampler in found] == names
