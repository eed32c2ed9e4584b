"""Speed and memory of the log reader, beside two usual readers and the limit, all in one run on one core.

    python tests/bench/bench_log_reader.py [--mb 200] [--memory-mb 1000]

Prints MB/s of: our reader (rows, events, segments, ranks), a naive reader (strip colours, one expression per line,
rows only), a nine-expressions-per-line reader (the way most harnesses do it), and a byte count. The log is generated:
8 ranks, 10 % step lines in torchtitan's colours, warnings, progress bars. Ends with the doubling of pathological
inputs, whose time must about double, and with peak memory at two sizes, which must not grow.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harness.logs import LogReader, Row, read_files

PIECE = 1 << 20
RANKS = 8
NOISE = (
    "[rank{r}]:[titan] {t} - httpx - INFO - HTTP Request: GET https://hub.example/datasets/c4/resolve/"
    'c4-train.{n:05d}-of-01024.json.gz "HTTP/1.1 200 OK"\n',
    "[rank{r}]:/opt/venv/lib/python3.12/site-packages/torch/inductor/lowering.py:1697: UserWarning: Torchinductor does "
    "not support code generation for complex operators. Performance may be worse than eager.\n",
    "[rank{r}]:  warnings.warn(\n",
    "[rank{r}]:[rank{r}]:[W625 12:55:10.376686804 Utils.hpp:137] Warning: Environment variable "
    "TORCH_NCCL_TRACE_BUFFER_SIZE is deprecated; use TORCH_FR_BUFFER_SIZE instead (function operator())\n",
    "[rank{r}]:[titan] {t} - root - WARNING - Low quality image {n} is skipped in Flux Dataloader.\n",
    "[rank{r}]:\rTokenizing: {p:3d}%|#######         | {n}/8192 [00:12<00:31, 173.21it/s]\n",
    "[rank{r}]:[titan] {t} - datasets - INFO - shard {n} of 8192 opened after 0.02 seconds, 17 documents skipped\n",
    "[rank{r}]:[titan] {t} - root - WARNING - Batch index {n} is larger than log length 100. Filling with zeros.\n",
    "[rank{r}]:[titan] {t} - torchft.manager - INFO - [replica_0/{r} - step {n}] should_commit=True replicas=2\n",
)
EVENTS = (  # after every eighth step, every rank
    "[rank{r}]:[titan] {t} - root - WARNING - {n} CUDA memory allocation retries.\n",
    "[rank{r}]:[titan] {t} - root - WARNING - Dataset c4_test is being re-looped\n",
)
STEP = (
    "[rank{r}]:[titan] {t} - root - INFO - \x1b[31mstep: {s:2}  \x1b[32mloss: {loss:8.5f}  "
    "\x1b[38;2;180;60;0mgrad_norm: {gn:7.4f}  \x1b[38;2;54;234;195mmemory: {gib:5.2f}GiB({pct:.2f}%)  "
    "\x1b[34mtps: {tps:,}  \x1b[36mtflops: {tf:,.2f}  \x1b[35mmfu: {mfu:.2f}%\x1b[39m\n"
)


def generated(size: int) -> Iterator[bytes]:
    """About ``size`` bytes of log, in pieces of about ``PIECE``."""
    out, held, total, n, step = [], 0, 0, 0, 0
    while total + held < size:
        clock = f"2026-10-20 {n // 3600 % 24:02d}:{n // 60 % 60:02d}:{n % 60:02d},{n % 1000:03d}"
        step += 1
        for rank in range(RANKS):
            tps = 4000 + (step * 7 + rank) % 300
            line = STEP.format(
                r=rank, t=clock, s=step, loss=2 + 10 / step**0.3, gn=1 + step % 7 / 9, gib=42.2, pct=44.38,
                tps=tps, tf=tps / 17, mfu=tps / 170,
            )  # fmt: skip
            out.append(line)
            held += len(line)
            for noise in (*NOISE, *EVENTS) if step % 8 == 0 else NOISE:
                n += 1
                line = noise.format(r=rank, t=clock, n=n, p=n % 101)
                out.append(line)
                held += len(line)
        if held >= PIECE:
            yield "".join(out).encode()
            total += held
            out, held = [], 0
    yield "".join(out).encode()


def ours(path: Path) -> int:
    return sum(isinstance(record, Row) for record in read_files(path))


ANSI = re.compile(r"\x1b\[[0-9;]*m")
NAIVE = re.compile(
    r"step:\s*(\d+)\s+loss:\s*([\d.]+)\s+grad_norm:\s*([\d.]+)\s+memory:\s*([\d.]+)GiB\(([\d.]+)%\)\s+"
    r"tps:\s*([\d,]+)\s+tflops:\s*([\d,.]+)\s+mfu:\s*([\d.]+)%"
)
NINE = tuple(
    re.compile(pattern)
    for pattern in (
        r"step:\s*(\d+)", r"loss:\s*([\d.]+)", r"grad_norm:\s*([\d.]+)", r"memory:\s*([\d.]+)GiB", r"\(([\d.]+)%\)",
        r"tps:\s*([\d,]+)", r"tflops:\s*([\d,.]+)", r"mfu:\s*([\d.]+)%", r"\[rank(\d+)\]",
    )
)  # fmt: skip


def naive(path: Path) -> int:
    """Strip the colours, one expression per line; rows only, of every rank."""
    rows = []
    with path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            match = NAIVE.search(ANSI.sub("", line))
            if match:
                rows.append((int(match[1]), *(float(text.replace(",", "")) for text in match.groups()[1:])))
    return len(rows)


def nine(path: Path) -> int:
    """Nine expressions per line, one per value."""
    rows = 0
    with path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            clean = ANSI.sub("", line)
            found = [expression.search(clean) for expression in NINE]
            if found[0] and found[1]:
                rows += 1
    return rows


def count(path: Path) -> int:
    lines = 0
    with path.open("rb") as stream:
        while data := stream.read(PIECE):
            lines += data.count(b"\n")
    return lines


def best_of(function: Callable[[Path], int], path: Path, times: int = 2) -> tuple[float, int]:
    """Shortest process time of ``times`` runs, and what the function counted."""
    best, result = float("inf"), 0
    for _ in range(times):
        start = time.process_time()
        result = function(path)
        best = min(best, time.process_time() - start)
    return best, result


def speed(mb: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "generated.log"
        with path.open("wb") as stream:
            for piece in generated(mb * 10**6):
                stream.write(piece)
        size = path.stat().st_size / 1e6
        print(f"log of {size:.0f} MB, {RANKS} ranks, about 10 % step lines; one core, best of 2, process time")
        figures = {}
        for name, function in (
            ("ours (rows, events, segments, ranks merged)", ours),
            ("naive (strip colours, one expression, rows)", naive),
            ("nine expressions per line", nine),
            ("byte count (the limit)", count),
        ):
            seconds, found = best_of(function, path)
            figures[function] = size / seconds
            print(f"  {name:46} {size / seconds:8.1f} MB/s   {found:>9} found")
        print(f"  ours / naive {figures[ours] / figures[naive]:.2f} (wanted >= 1.5)   "
              f"ours / nine {figures[ours] / figures[nine]:.2f} (wanted >= 2.5)")  # fmt: skip


PATHOLOGICAL: dict[str, Callable[[int], bytes]] = {
    "one line of letters": lambda n: b"x" * n,
    "one line of step labels": lambda n: b"step: " * (n // 6),
    "one line of step records": lambda n: b"step:  1  loss: 12.24545  mfu: N/A  " * (n // 36),
    "colour codes": lambda n: b"\x1b[31m" * (n // 5) + b"step: 1  loss: 2.50000  mfu: N/A\n",
    "colour codes, each before a label": lambda n: b"\x1b[31mloss: " * (n // 11),
    "nested prefixes": lambda n: b"[rank0]:" * (n // 8) + b"step: 1  loss: 2.50000  mfu: N/A\n",
    "unterminated OSC sequences": lambda n: b"\x1b]0;step: 1" * (n // 11),
    "carriage returns": lambda n: b"step: 1  loss:\r" * (n // 15),
    "wraps that never end": lambda n: b"step: 1  loss:\n" * (n // 15),
    "digits and commas": lambda n: b"step: 1  loss: " + b"1," * (n // 2) + b"\n",
}


def doubling(mb: int) -> None:
    print(f"doubling {mb} to {2 * mb} MB: seconds, and their ratio (linear is 2)")
    for name, make in PATHOLOGICAL.items():
        seconds = []
        for size in (mb, 2 * mb):
            data = make(size * 10**6)
            start = time.process_time()
            reader = LogReader()
            for position in range(0, len(data), PIECE):
                reader.feed(data[position : position + PIECE])
            reader.close()
            seconds.append(time.process_time() - start)
        print(f"  {name:36} {seconds[0]:6.2f} {seconds[1]:6.2f}   x {seconds[1] / max(seconds[0], 1e-9):.2f}")


def peak_kib() -> int:
    """Peak resident memory of this process. (``ru_maxrss`` would include the peak of the process that started it.)"""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s*(\d+)", status.read_text())[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory(mb: int) -> None:
    """Peak resident memory of a process that reads ``mb`` MB, in this process."""
    reader, rows = LogReader(), 0
    for piece in generated(mb * 10**6):
        rows += sum(isinstance(record, Row) for record in reader.feed(piece))
    peak = peak_kib() / 1024
    print(f"  {mb:5} MB read, {rows} rows: peak {peak:.0f} MiB (wanted < 150)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--memory-mb", type=int, default=1000)
    parser.add_argument("--doubling-mb", type=int, default=10)
    parser.add_argument("--only-memory", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only_memory:
        memory(args.only_memory)
        return
    speed(args.mb)
    doubling(args.doubling_mb)
    print("peak memory of a fresh process")
    for mb in (args.memory_mb // 10, args.memory_mb):
        subprocess.run([sys.executable, __file__, "--only-memory", str(mb)], check=True)


if __name__ == "__main__":
    main()
