"""What a real rehearsal measures: a compile step, a late outlier, a competing process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.rundir import RunDir
from tests.conftest import SHALLOW, call, only_run

pytestmark = pytest.mark.titan
BUSY = "while True: pass"
SLEEP_S, SLOW_STEP = 3.0, 16
"""As planted by tests/harness/planted.py, which only a training process can import."""


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """One rank that sleeps in one step, on a machine whose cores another program keeps busy meanwhile."""
    runs = tmp_path_factory.mktemp("disturbed") / "runs"
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2)]
    try:
        called = call(
            "harness", "+path=native_4b", "platform.num_ranks=1", "train.steps=40", f"runs={runs}", "tracking=off",
            "sampling.interval_s=0.5", "train.flags=[--override.imports,tests.harness.planted.sleeps]",
            "platform.price_per_hour=36", "platform.price_date=2026-11-30", *SHALLOW,
        )  # fmt: skip
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert called.exit_code == 0, called.stdout + called.stderr
    return only_run(runs)


def test_planted_sleep_is_a_late_outlier(disturbed: RunDir) -> None:
    summary = disturbed.summary()
    (planted,) = (slow for slow in summary["slow_steps"] if slow["step"] == SLOW_STEP)
    assert planted["excess_s"] == pytest.approx(SLEEP_S, rel=0.35)
    assert (summary["warmup_steps"] or 0) < SLOW_STEP - 1


def test_competing_process_is_a_warning(disturbed: RunDir) -> None:
    found = [event["data"] for event in disturbed.events() if event["kind"] == "contention"]
    assert found, list(disturbed.samples())[-1]
    assert any("python" in data["message"] or "load" in data["message"] for data in found), found


def test_cost_is_the_users_price_times_the_time(disturbed: RunDir) -> None:
    summary = disturbed.summary()
    cost = summary["cost"]
    assert (cost["price_per_hour"], cost["price_date"]) == (36.0, "2026-11-30")
    assert cost["run"] == pytest.approx(0.01 * summary["end_to_end"]["wall_s"])


def test_samples_and_memory(disturbed: RunDir) -> None:
    samples = [sample for sample in disturbed.samples() if sample["kind"] == "host"]
    assert len(samples) >= 5
    assert max(sample["ranks"]["processes"] for sample in samples) >= 1
    summary = disturbed.summary()
    assert 0 < summary["memory"]["peak_gib"] < 8
    assert summary["memory"]["ranks_rss_gib"] > 0
    assert summary["steady"]["mfu"] is None
    assert summary["steady"]["mfu_reported"] is None


def test_compile_step_is_warm_up(tmp_path: Path) -> None:
    runs, cache = tmp_path / "runs", tmp_path / "inductor"
    called = call("harness", "+path=native_4b", "platform.num_ranks=1", "train.compile=true", "train.steps=20",
                  f"runs={runs}", "tracking=off", *SHALLOW, env={"TORCHINDUCTOR_CACHE_DIR": str(cache)})  # fmt: skip
    assert called.exit_code == 0, called.stdout + called.stderr
    run = only_run(runs)
    summary, rows = run.summary(), list(run.rows())
    warmup, typical = summary["warmup"], summary["step_times"]["by_tps_median_s"]
    first_step_s = summary["step_times"]["tokens_per_step_per_rank"] / rows[0]["tps"]
    assert first_step_s > 100 * typical
    assert 1 <= warmup["slow_first_steps"] <= 5
    assert warmup["slow_first_s"] == pytest.approx(first_step_s, rel=0.1)  # tps is printed as a whole number
    assert warmup["cache"] == "cold"
    if summary["phase"] == "steady":
        assert 1 <= summary["warmup_steps"] <= 5
        assert summary["compile_s"] == pytest.approx(first_step_s, rel=0.1)
    else:  # a CPU that still gets faster over these steps: that is said, and no headline is given
        assert (summary["phase"], summary["steady"]["step_s_median"]) == ("no_steady_state", None)
