"""What kernels cost on this CPU: the gate, the simulator, the ops of a rehearsal. Nothing of it is about Trainium.

    python tests/bench/bench_kernels.py [--repeat 5]

Each figure is the median of several, with its limit or with a reference measured in the same run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kernels.check.shapes import RopeShape  # noqa: E402
from kernels.plan import LayerShape, gate_arguments, plan_swaps  # noqa: E402

REHEARSAL = LayerShape(
    batch=2, seq=256, heads=4, kv_heads=2, head_dim=16, dtype="float32", dim=64, ffn=32, experts=64, top_k=4
)
"""One layer of path=moe_nki as it is rehearsed (conf/path/moe_nki.yaml)."""


def median(work: Callable[[], object], repeat: int) -> float:
    """Median seconds of ``repeat`` calls, after one that is not counted."""
    work()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def say(what: str, seconds: float, beside: str) -> None:
    print(f"{what:<68} {1e3 * seconds:10.2f} ms   {beside}")


def gate_of_a_rehearsal() -> None:
    """As the pilot runs it: one process per kernel, imports included."""
    total = 0.0
    for arguments in gate_arguments(plan_swaps("nki_all", num_layers=4, has_experts=True), REHEARSAL, lnc=2):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "kernels", *arguments], check=True, capture_output=True, cwd=ROOT)
        seconds = time.perf_counter() - start
        total += seconds
        say(f"gate, process and all: {arguments[1]}, rehearsal's shapes", seconds, "")
    say("gate of the rehearsal, both kernels", total, f"limit 10 s: {'kept' if total < 10 else 'MISSED'}")


def rope_check(repeat: int) -> None:
    """The check of one 4096 x 128 head, and of a full attention layer, forward and gradients, both core orders."""
    from kernels.check import gate

    for heads, kv_heads in ((1, 1), (32, 8)):
        shape = RopeShape(batch=1, heads=heads, kv_heads=kv_heads, seq=4096, head_dim=128)

        def check(shape: RopeShape = shape) -> None:
            results = gate.run("nki_rope", shapes=[shape], dtypes=["bfloat16"], lncs=[2], where="simulator")
            assert all(result.passed for result in results)

        seconds = median(check, repeat)
        limit = f"limit 2 s: {'kept' if seconds < 2 else 'MISSED'}" if heads == 1 else ""
        say(f"check nki_rope bfloat16 4096 x 128, {heads} + {kv_heads} heads", seconds, limit)


def ops_of_a_rehearsal(repeat: int) -> None:
    """One call of each op, forward and backward, beside the library's own mathematics."""
    import torch

    from kernels import backend, ops
    from kernels.moe.reference import experts_oracle
    from kernels.rope.reference import rope_cache, rotate

    query, key = (torch.randn(2, 256, heads, 16, requires_grad=True) for heads in (4, 2))
    cache = rope_cache(4096, 16)
    x = torch.randn(2048, 64, requires_grad=True)
    w1, w3 = (torch.randn(64, 32, 64, requires_grad=True) for _ in range(2))
    w2 = torch.randn(64, 64, 32, requires_grad=True)
    counts = torch.full((64,), 32)

    def train(function: Callable[[], tuple[torch.Tensor, ...]]) -> Callable[[], None]:
        return lambda: sum(part.square().sum() for part in function()).backward()

    plain_rope = median(train(lambda: (rotate(query, cache), rotate(key, cache))), repeat)
    plain_experts = median(train(lambda: (experts_oracle(x, counts, w1, w2, w3),)), repeat)
    for where in ("reference", "simulator"):
        with backend.isolated(where, lnc=2):
            seconds = median(train(lambda: ops.rope(query, key, cache)), repeat)
            say(f"pilot::rope, {where}, 2 x 256 x (4 + 2) x 16", seconds, f"{seconds / plain_rope:.1f} x plain PyTorch")
            seconds = median(train(lambda: (ops.experts(x, counts, w1, w2, w3),)), repeat)
            ratio = f"{seconds / plain_experts:.1f} x plain PyTorch"
            say(f"pilot::experts, {where}, 2048 rows, 64 experts 64 x 32", seconds, ratio)


def positions_of_a_model(repeat: int) -> None:
    """Checking the positions of 36 layers once per tensor, beside checking them in every layer."""
    import torch

    from kernels.positions import _is_sequential, require_sequential

    def once() -> None:
        positions = torch.arange(4096).expand(8, -1).contiguous()
        for _ in range(36):
            require_sequential(positions)

    def always() -> None:
        positions = torch.arange(4096).expand(8, -1).contiguous()
        for _ in range(36):
            assert bool(_is_sequential(positions))

    seconds = median(once, repeat)
    say(
        "positions 8 x 4096 checked for 36 layers",
        seconds,
        f"{median(always, repeat) / seconds:.1f} x faster than each",
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeat", type=int, default=5)
    repeat = options.parse_args().repeat
    print("CPU figures of the simulator and of PyTorch; they say nothing of Trainium")
    gate_of_a_rehearsal()
    rope_check(repeat)
    ops_of_a_rehearsal(repeat)
    positions_of_a_model(repeat)


if __name__ == "__main__":
    main()
