"""The key check of a 4B checkpoint, headers only, against safetensors' own way to the same keys and shapes. Also how
fast values are read for verify and diff. Each in a process of its own, with its peak memory. Run: make bench.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
ROUNDS = 5
MEASURE = """
import sys, time
begin = time.perf_counter()
{work}
seconds = time.perf_counter() - begin
peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))  # ru_maxrss counts the parent's
print(seconds, int(peak.split()[1]) / 1024)
"""
OURS = """
from pathlib import Path
from harness.paths import load_path
from harness.weights import weight_problems
assert weight_problems(Path(sys.argv[1]), load_path(sys.argv[2]).full_shape()) == []
"""
REFERENCE = """
from pathlib import Path
from safetensors import safe_open
found = {}
for file in Path(sys.argv[1]).glob('*.safetensors'):
    with safe_open(file, 'numpy') as opened:
        for name in opened.keys():
            part = opened.get_slice(name)
            found[name] = (part.get_dtype(), part.get_shape())
assert found
"""
FINITE = """
from pathlib import Path
from harness.checkpoint.values import nonfinite
from harness.weights import read_tensors
place = Path(sys.argv[1])
assert sum(nonfinite(place, tensor) for tensor in read_tensors(place).values()) == 0
"""
DIFF = """
from pathlib import Path
from harness.checkpoint.diff import compare
assert compare(Path(sys.argv[1]), Path(sys.argv[1])).equal
"""
RAW = """
from pathlib import Path
for file in Path(sys.argv[1]).glob('*.safetensors'):
    with file.open('rb', buffering=0) as stream:
        while stream.read(1 << 21):
            pass
"""


def measure(work: str, *arguments: str) -> tuple[float, float]:
    """Seconds, imports included but not the interpreter's start, and peak resident memory in MiB."""
    command = [sys.executable, "-c", MEASURE.format(work=work), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, memory = done.stdout.split()
    return float(seconds), float(memory)


def show(name: str, work: str, reference: str, *arguments: str, gigabytes: float = 0.0) -> None:
    pairs = [(measure(work, *arguments), measure(reference, *arguments)) for _ in range(ROUNDS)]
    (ours, memory), (theirs, their_memory) = (
        (statistics.median(pair[side][0] for pair in pairs), max(pair[side][1] for pair in pairs)) for side in (0, 1)
    )
    ratio = statistics.median(pair[0][0] / pair[1][0] for pair in pairs)
    speed = f"{gigabytes / ours:.2f} GB/s" if gigabytes else ""
    print(f"{name:<34} {ours:>8.3f} {memory:>7.0f} {theirs:>12.3f} {their_memory:>7.0f} {ratio:>6.2f}  {speed}")


def main() -> None:
    from harness.paths import load_path
    from harness.shapes import ModelShape
    from tests.weights.checkpoints import write, write_sparse

    print(f"medians of {ROUNDS} rounds in pairs; peak memory is the largest, MiB")
    print(f"{'':<34} {'ours s':>8} {'MiB':>7} {'reference s':>12} {'MiB':>7} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for path in ("native_4b", "moe_nki"):
            place = write_sparse(Path(folder) / path, load_path(path).full_shape())
            show(f"keys of {path} (vs safe_open)", OURS, REFERENCE, str(place), path)
        wide = ModelShape(
            num_layers=4, hidden=1024, num_heads=16, num_kv_heads=8, head_dim=128, ffn=3072, vocab=65536, tied=True
        )
        place = write(Path(folder) / "values", wide)
        gigabytes = 2 * wide.num_params() / 1e9
        show(f"verify's reading, {gigabytes:.2f} GB (vs read)", FINITE, RAW, str(place), gigabytes=gigabytes)
        show("diff with itself (vs read)", DIFF, RAW, str(place), gigabytes=gigabytes)


if __name__ == "__main__":
    main()
