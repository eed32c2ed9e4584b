"""Full disks, runaway logs, want of memory, a closed terminal: nothing that is there is lost, nothing is left."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.rundir import RunDir
from harness.sync import sync
from tests.conftest import ROOT, SHALLOW, environment
from tests.faults.contents import losses, status_of
from tests.faults.pilots import (
    STANDIN,
    assert_gone,
    assert_rows_complete,
    log_of,
    ranks_of,
    standin,
    start_pilot,
)

pytestmark = [pytest.mark.titan, pytest.mark.faults]
MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 48 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path, leave: int) -> Path:
    """Take all of a disk but ``leave`` bytes."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        while (free := shutil.disk_usage(place).free - leave) > 0:
            file.write(os.urandom(min(free, MIB)))
    return filler


@pytest.mark.parametrize(
    ("min_free_mib", "reason"), [(8, "disk nearly full: "), (0, "disk full: no room for the record")]
)
def test_full_disk_ends_a_real_training_in_order(
    small_disk: Path, tmp_path: Path, prepared_cache: Path, empty_database: Path, min_free_mib: int, reason: str
) -> None:
    """Found by the look at it every second, or, where that is off, by the first write that fails."""
    runs = small_disk / "runs"
    runs.mkdir()
    shutil.copy(empty_database, runs / "mlflow.db")
    disk = f"launch.min_free_mib={min_free_mib}"
    pilot = start_pilot(runs, disk, "train.steps=2000", "tracking.flush_s=0.5", cache=prepared_cache)
    pilot.until_logged(b"step:  5  loss")
    filler = fill(small_disk, leave=min_free_mib * MIB // 2)
    assert pilot.wait() == 1
    run = pilot.run
    assert_gone(run)
    status = run.status()
    assert (status.state, status.reason[: len(reason)]) == ("failed", reason), status
    rows = assert_rows_complete(run)
    assert 5 <= len(rows) < 2000
    assert run.summary()["steps"] == len(rows)
    assert run.checks()[0]["name"] == "completed"
    assert [*run.path.glob(".*.tmp"), *run.path.glob(".reserve")] == []
    filler.unlink()
    shutil.copy(empty_database, tmp_path / "mlflow.db")  # that on the full disk may have lost a write
    assert sync([run], f"sqlite:///{tmp_path / 'mlflow.db'}", everything=True) == 0
    assert status_of(tmp_path / "mlflow.db", run) == ("FAILED", status.reason)
    assert losses(tmp_path / "mlflow.db", run) == [(row["step"], row["loss"]) for row in rows]


def test_too_small_a_disk_is_refused_before_the_start(small_disk: Path) -> None:
    pilot = start_pilot(small_disk / "runs", "tracking=off")
    assert pilot.wait() == 2
    assert re.search(r"harness: 0\.0 GiB free in .*, 0\.2 GiB needed", pilot.output), pilot.output
    assert list((small_disk / "runs").iterdir()) == []


# -- logs -------------------------------------------------------------------------------------------------------------

CHATTY = """
import os, runpy, sys
sys.argv = [{standin!r}, "--rank", "20", "0.05"]
module = runpy.run_path({standin!r}, run_name="standin")
say, line = module["say"], module["line"]
def chatty(text, choose):
    say(text, choose)
    if " step: " in text:
        {more}
module["rank"].__globals__["say"] = chatty
module["rank"](20, 0.05)
"""
ENDLESS = "os.write(1, b'x' * (50 << 20) + b'\\n')"
WARNINGS = "[os.write(1, b'W %d: the same warning again and again and again\\n' % n * 100) for n in range(2500)]"


def chatty_pilot(tmp_path: Path, cache: Path, more: str, *arguments: str):
    """The stand-in's rank, which prints ``more`` after each step line (only the third, for ENDLESS)."""
    program = tmp_path / "chatty.py"
    program.write_text(CHATTY.format(standin=STANDIN, more=more))
    command = f"launch.command=['{sys.executable}','{program}']"
    return start_pilot(tmp_path / "runs", *standin(20), command, "tracking=off", *arguments, cache=cache)


def test_a_line_of_50_mb(tmp_path: Path, prepared_cache: Path, empty_database: Path) -> None:
    pilot = chatty_pilot(tmp_path, prepared_cache, f"if 'step:  3' in text: {ENDLESS}")
    assert pilot.wait() == 1, pilot.output
    run = pilot.run
    assert run.status().state == "finished"
    assert len(assert_rows_complete(run)) == 20
    assert log_of(run).count(b"x") >= 50 << 20
    assert max(len(json.dumps(event)) for event in run.events()) < 10_000
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    assert sync([run], f"sqlite:///{tmp_path / 'mlflow.db'}", everything=True) == 0
    assert len(losses(tmp_path / "mlflow.db", run)) == 20


def test_runaway_log_is_bounded_and_keeps_its_steps(tmp_path: Path, prepared_cache: Path) -> None:
    """280 MB of warnings in 20 steps: parts of 64 MiB are set aside and compressed."""
    pilot = chatty_pilot(tmp_path, prepared_cache, WARNINGS)
    assert pilot.wait() == 1, pilot.output
    run = pilot.run
    assert run.status().state == "finished"
    assert [row["step"] for row in assert_rows_complete(run)] == list(range(1, 21))
    sizes = {file.name: file.stat().st_size for file in run.log_files()}
    assert [*sizes] == ["train.log.1.zst", "train.log.2.zst", "train.log.3.zst", "train.log.4.zst", "train.log"]
    assert sum(sizes.values()) < 80 << 20
    assert pilot.wait() is not None


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group for memory (version 1 or 2) into which a rank can be moved."""
    root = Path("/sys/fs/cgroup")
    group = (root / "memory" if (root / "memory").is_dir() else root) / f"pilot-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    yield group
    for _ in range(100):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.05)


def test_host_s_killer_is_recognised(memory_group: Path, tmp_path: Path, prepared_cache: Path) -> None:
    pilot = start_pilot(tmp_path / "runs", "tracking=off", "train.steps=2000", cache=prepared_cache)
    run = pilot.until_logged(b"step:  3  loss")
    limits = [memory_group / name for name in ("memory.limit_in_bytes", "memory.max")]
    next(limit for limit in limits if limit.exists()).write_text(str(MIB // 2))
    (memory_group / "cgroup.procs").write_text(str(ranks_of(run)[1]))
    assert pilot.wait() == 1, pilot.output
    status = pilot.run.status()
    assert status.state == "failed"
    assert status.reason.startswith("rank 1: out of host memory: killed by SIGKILL; the kernel killed "), status
    (event,) = (event for event in run.events() if event["kind"] == "out_of_memory")
    assert event["data"]["where"] == "host"
    assert_gone(run)


def test_allocator_is_recognised(tmp_path: Path, prepared_cache: Path) -> None:
    flags = "train.flags=[--override.imports,tests.faults.plants.greedy_rope]"
    pilot = start_pilot(tmp_path / "runs", "tracking=off", "platform.num_ranks=1", flags, cache=prepared_cache)
    assert pilot.wait() == 1, pilot.output
    status = pilot.run.status()
    assert status.reason.startswith("rank 0: out of host memory (allocation refused): "), status


# -- others -----------------------------------------------------------------------------------------------------------


def test_planted_nan_is_named(tmp_path: Path, prepared_cache: Path) -> None:
    flags = "train.flags=[--override.imports,tests.faults.plants.nan_rope]"
    pilot = start_pilot(tmp_path / "runs", flags, "tracking=off", cache=prepared_cache)
    assert pilot.wait() == 1, pilot.output
    run = pilot.run
    assert [row["step"] for row in assert_rows_complete(run)] == [1, 2, 3]
    assert re.search(r"rank \d: .*Loss is not finite .*at step 4", run.status().reason), run.status()
    assert_gone(run)


def test_nobody_listens_any_more(tmp_path: Path, prepared_cache: Path) -> None:
    """The reader of the output is gone: the training goes on and is recorded."""
    runs = tmp_path / "runs"
    shutil.copytree(prepared_cache, runs / ".cache")
    arguments = ["+path=native_4b", f"runs={runs}", *SHALLOW, *standin(), "tracking=off"]
    with subprocess.Popen(
        [sys.executable, "-m", "harness", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1
    (status,) = runs.glob("pilot/*/status.json")
    run = RunDir(status.parent)
    assert (run.status().state, len(assert_rows_complete(run))) == ("finished", 30)
