"""Want of memory is recognised by its own words, on three places, and not by words that look like it (no torch)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.failure import explain
from harness.logs import Event
from harness.out_of_memory import KernelKills, OutOfMemory, out_of_memory
from harness.watch import End

LOGS = Path(__file__).resolve().parents[3] / "shared" / "logs"
SIGNS = {
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.45 GiB. GPU 0 has": "device",
    "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 56.00 MiB.": "device",
    "torch.AcceleratorError: CUDA error: out of memory": "device",
    "RuntimeError: level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)": "device",
    "ERROR   TDRV:log_dev_mem   Failed to allocate 2.000GB (usage: tensors) on ND 0:NC 1": "device",
    "NRT allocation failed with 4: NRT_RESOURCE": "device",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you": "allocator",
    "terminate called after throwing an instance of 'std::bad_alloc'": "allocator",
    "OSError: [Errno 12] Cannot allocate memory": "allocator",
    "MemoryError": "allocator",
    "Memory cgroup out of memory: Killed process 4242 (python3)": "host",
    "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed.": "host",
}
LOOK_ALIKES = [
    "No valid triton configs. OutOfMemoryError: out of resource: triton_flex_attention Required: 361472",
    "[W522 19:07:17 CUDACachingAllocator.cpp:495] expandable_segments: memory mapping failed with OOM on device 0",
    "[titan] 2026-05-22 - root - WARNING - 27 CUDA memory allocation retries.",
    "[titan] 2026-05-22 - root - WARNING - 1 CUDA OOM errors thrown.",
    "ReadTimeoutError: HTTPSConnectionPool: Read timed out.",
    "step: 10  loss:  6.75557  grad_norm:  0.7065  memory:  0.50GiB(2.10%)  tps: 22,514",
]


@pytest.mark.parametrize(("text", "where"), SIGNS.items())
def test_sign(text: str, where: str) -> None:
    found = out_of_memory(f"something before\n{text}\nsomething after")
    assert found is not None
    assert (found.where, found.evidence) == (where, text)


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_look_alike(text: str) -> None:
    assert out_of_memory(text) is None
    assert out_of_memory(f"{text}\nMemoryError") == OutOfMemory("allocator", "MemoryError")


FAILED_FOR_IT = {"orangingq-01", "orangingq-08", "ptitan-autoresearch-05", "qiu023-11", "qiu023-18", "xpu-ezpz-01"}


@pytest.mark.skipif(not LOGS.exists(), reason="the collected logs are not here")
def test_collected_logs() -> None:
    """Six of them failed for want of memory; twelve others speak of it."""
    found = {log.stem for log in LOGS.glob("*.log") if out_of_memory(log.read_text(errors="replace"))}
    assert found == FAILED_FOR_IT


def killed(rank: int, pid: int) -> list[Event]:
    return [Event(kind="child_failed", line=1, data={"local_rank": rank, "exitcode": -9, "pid": pid})]


class Kernel(KernelKills):
    """A kernel whose log holds these lines, or cannot be read; its count rises by one."""

    def __init__(self, log: Path, lines: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
        log.write_text("Out of memory: Killed process 1 (before)\n")
        counts = iter((5, 6, 6, 6))
        monkeypatch.setattr("harness.out_of_memory._oom_kills", lambda: next(counts))
        opened = os.open
        monkeypatch.setattr(os, "open", lambda _, *flags: opened(log if lines is not None else log / "none", *flags))
        super().__init__()
        monkeypatch.setattr(os, "open", opened)
        with log.open("a") as file:
            file.write(lines or "")


def test_sigkill_is_the_host_s_only_where_the_kernel_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = tmp_path / "ranks"
    plain = explain(End(1), killed(1, 77), ranks)
    assert (plain.reason, plain.memory) == ("rank 1: killed by SIGKILL", None)
    said = "6,1,2,-;Memory cgroup out of memory: Killed process 77 (python3) total-vm:1kB\n"
    named = explain(End(1), killed(1, 77), ranks, Kernel(tmp_path / "kmsg", said, monkeypatch))
    what = "out of host memory: killed by SIGKILL; the kernel killed"
    assert named.memory is not None
    assert named.reason == f"rank 1: {what} process 77 for want of memory"
    for other in (1, 78):  # killed before the run, and not killed at all
        found = explain(End(1), killed(1, other), ranks, Kernel(tmp_path / "kmsg", said, monkeypatch))
        assert found.reason == "rank 1: killed by SIGKILL"
    unread = explain(End(1), killed(1, 78), ranks, Kernel(tmp_path / "kmsg", None, monkeypatch))
    assert unread.reason == f"rank 1: {what} 1 on this host for want of memory meanwhile"


def test_last_words_of_the_rank_that_failed_count(tmp_path: Path) -> None:
    """Neuron's runtime prints and exits: rank 5 said it, rank 0 did not."""
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    (ranks / "5.log").write_text("NRT allocation failed with 4\nexiting\n")
    (tmp_path / "train.log").write_text("[rank0]:27 CUDA memory allocation retries.\n")
    exited = [Event(kind="child_failed", line=1, data={"local_rank": 5, "exitcode": 1, "pid": 1})]
    found = explain(End(1), exited, ranks)
    assert found.memory == OutOfMemory("device", "NRT allocation failed with 4")
    assert found.reason.startswith("rank 5: out of device memory: exit code 1: exiting")
    exited[0].data["local_rank"] = 0
    assert explain(End(1), exited, ranks).memory is None


def test_the_real_kernel_can_be_asked() -> None:
    kills = KernelKills()
    assert kills.evidence(os.getpid()) == ""
    kills.close()
