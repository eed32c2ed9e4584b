"""What the samplers cost: `python tests/bench/bench_samplers.py [SECONDS]`.

Prints, in one run on one core: processor time of a host sample for trees of 2, 16 and 65 processes (torchrun and 64
ranks), against the usual way (every process of the machine asked for its times and memory); the share of a core that
the running sampler takes, against the limit of 1 %; and the time to read one report of neuron-monitor with 64 cores in
use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from harness.rundir import JsonLines
from harness.samplers import HostSampler
from harness.samplers.host import _State
from harness.samplers.neuron import parse_report

LIMIT = 0.01
REPORT = Path(__file__).resolve().parents[1] / "samplers" / "neuron_monitor.jsonl"
WAIT = "import sys; sys.stdin.read()"
PARENT = f"""
import subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", {WAIT!r}], stdin=subprocess.PIPE) for _ in range(int(sys.argv[1]) - 1)]
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def tree_of(count: int) -> Iterator[int]:
    """A parent with ``count - 1`` idle children; its pid."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    parent.stdout.readline()
    try:
        yield parent.pid
    finally:
        parent.stdin.close()
        parent.wait()


def cpu_ms(call: Callable[[], Any], repeat: int = 30) -> float:
    call()
    began = time.process_time()
    for _ in range(repeat):
        call()
    return 1000 * (time.process_time() - began) / repeat


def ask_everyone() -> int:
    """The reference: what monitors usually do at each tick."""
    return sum(1 for process in psutil.process_iter(["cpu_times", "memory_info", "name", "ppid"]) if process.info)


def share_of_a_core(root: int, seconds: float, interval_s: float, path: Path) -> float:
    """Processor time of this process per second while the sampler runs and writes, and nothing else does."""
    sampler = HostSampler(JsonLines(path).append, root_pid=root, interval_s=interval_s)
    sampler.start()
    began = time.process_time()
    time.sleep(seconds)
    used = time.process_time() - began
    sampler.stop()
    return used / seconds


def report_of(cores: int) -> str:
    """The recorded report with as many runtimes as there are ranks, one core each."""
    report = json.loads(REPORT.read_text().splitlines()[1])
    text = json.dumps(report["neuron_runtime_data"][0])
    own = '"0": {"'
    report["neuron_runtime_data"] = [json.loads(text.replace(own, f'"{core}": {{"')) for core in range(cores)]
    return json.dumps(report)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(f"{'processes':>10} {'sample ms':>10} {'usual ms':>9} {'ratio':>6} {'of a core':>10} {'limit':>6}")
    for count in (2, 16, 65):
        with tree_of(count) as root, tempfile.TemporaryDirectory() as folder:
            state = _State()
            state.begin()
            ours, usual = cpu_ms(lambda state=state, root=root: state.sample(root)), cpu_ms(ask_everyone)
            share = share_of_a_core(root, seconds, 2.0, Path(folder) / "samples.jsonl")
            print(f"{count:>10} {ours:>10.2f} {usual:>9.2f} {usual / ours:>6.2f} {share:>10.3%} {LIMIT:>6.0%}")
    line = report_of(64)
    parsed = parse_report(json.loads(line))
    assert parsed["neuron"]["cores_in_use"] == 64
    whole, bare = cpu_ms(lambda: parse_report(json.loads(line))), cpu_ms(lambda: json.loads(line))
    print(
        f"neuron-monitor, 64 cores, {len(line) / 1000:.0f} kB a report: {whole:.2f} ms, of it json.loads {bare:.2f} ms"
    )


if __name__ == "__main__":
    main()
