"""The real thing, two ranks under torchrun: one that trains, one that fails on one rank only."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.titan.spec import SPEC_ENV, TitanSpec
from tests.titan.inprocess import STEP, arguments_of, spec_of, train, write_spec

pytestmark = pytest.mark.titan


def torchrun(spec: TitanSpec, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``spec`` as the launcher does; output of rank 0 and torchrun's own."""
    launcher = ["--nproc_per_node", str(spec.ranks), "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"]
    command = [sys.executable, "-m", "torch.distributed.run", *launcher, "--local-ranks-filter=0", "--tee=3"]
    command += [f"--log-dir={folder / 'ranks'}", "-m", "harness.titan", *arguments_of(spec)]
    environment = os.environ | {
        SPEC_ENV: str(write_spec(spec, folder)),
        "PYTHONPATH": os.getcwd(),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, timeout=120
    )


def test_two_ranks_train_one_model(workspace: Path, tmp_path: Path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("gloo over two processes is tried on Linux only")
    # gloo's threads may abort a process that winds up, which is too rare to wait for and therefore planted
    late_abort = ("tests.titan.swaps.aborts_at_exit",)
    spec = spec_of("native_4b", workspace, ranks=2, steps=4, override_imports=late_abort)
    done = torchrun(spec, tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    losses = [float(match[2]) for match in STEP.finditer(done.stdout)]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert "[pilot] check model pass layers=2" in done.stdout
    assert "dp_shard=2" in done.stdout
    assert "Applied 1 override(s)" in done.stdout
    assert "Process group destroyed" in done.stdout  # nothing is lost at the end
    # twice the sequences of one rank at a time: the same first loss up to the random weights of another layout
    one_rank = train(dataclasses.replace(spec, ranks=1, steps=1, override_imports=()))
    assert losses[0] == pytest.approx(one_rank.losses[0], abs=0.1)


def test_a_rank_that_fails_alone_is_named_with_its_reason(workspace: Path, tmp_path: Path) -> None:
    spec = spec_of("native_4b", workspace, ranks=2, steps=2, override_imports=("tests.titan.swaps.fails_on_rank_one",))
    done = torchrun(spec, tmp_path)
    assert done.returncode == 1
    summary = done.stdout[done.stdout.index("Root Cause") :]
    assert re.search(r"rank\s+: 1 \(local_rank: 1\)", summary), summary
    assert "ValueError: planted on rank 1" in summary
    assert "fails_on_rank_one" in summary  # the traceback, to the line
