"""A trainer that is fast and prints what torchtitan 0.3.0 prints: an agent, and a rank in a session of its own.

``python standin.py STEPS SECONDS_PER_STEP``: stands where torchrun does (``launch.command``), takes some milliseconds.
The lines are those of a real rehearsal; the rank writes them in pieces that end anywhere.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from datetime import datetime

HEAD = """\
torchtitan version: 0.3.0 (0.0.0 means __version__ is not defined correctly).
Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=1, cp=1, tp=1, ep=1
Model qwen3 native_4b size: 217,472 total parameters
Peak FLOPS used for computing MFU: inf
CPU memory usage for model: 0.46GiB(1.97%)
Trainer is initialized with local batch size 2, global batch size 2, gradient accumulation steps 1, sequence length \
128, total steps {steps} (warmup 2)
Training starts at step 1
"""
STEP = (
    "step: {step:2}  loss: {loss:8.5f}  grad_norm: {norm:7.4f}  memory:  0.51GiB(2.17%)  tps: {tps:,}  "
    "tflops: 0.00  mfu: 0.00%\n"
)
TAIL = "Sleeping 2 seconds for other ranks to complete\nTraining completed\nProcess group destroyed\n"


def line(text: str) -> str:
    return f"[titan] {datetime.now().strftime('%Y-%m-%d %H:%M:%S,%f')[:-3]} - root - INFO - {text}"


def rank(steps: int, pause: float) -> None:
    from harness.launch import join_run

    join_run()
    choose = random.Random(0)
    for text in HEAD.format(steps=steps).splitlines(keepends=True):
        say(line(text), choose)
    for step in range(1, steps + 1):
        time.sleep(pause)
        loss, tps = 7.6 / (1 + 0.004 * step) + choose.uniform(-0.1, 0.1), choose.randint(900, 9000)
        say(line(STEP.format(step=step, loss=loss, norm=choose.uniform(0.5, 1.2), tps=tps)), choose)
    time.sleep(pause)
    for text in TAIL.splitlines(keepends=True):
        say(line(text), choose)


def say(text: str, choose: random.Random) -> None:
    data = text.encode()
    cut = choose.randint(1, len(data) - 1)
    os.write(1, data[:cut])
    os.write(1, data[cut:])


def agent(arguments: list[str]) -> int:
    environment = os.environ | {"LOCAL_RANK": "0", "RANK": "0"}
    command = [sys.executable, "-S", __file__, "--rank", *arguments]
    child = subprocess.Popen(command, env=environment, start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    code = child.wait()
    if code:
        where = f"{os.getpid()} torch/distributed/elastic/multiprocessing/api.py:882]"
        what = f"failed (exitcode: {code}) local_rank: 0 (pid: {child.pid}) of binary: {sys.executable}"
        print(f"E1130 05:00:00.000000 {where} {what}", flush=True)
    return int(bool(code))


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank(int(sys.argv[2]), float(sys.argv[3]))
    else:
        sys.exit(agent(sys.argv[1:]))
