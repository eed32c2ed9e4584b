"""Data that other people might bring: gaps, extra runs, impossible numbers, copies, torn files."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from analysis.comparison import compare
from tests.analysis.sweeps import (
    REQUEST,
    baselines,
    candidates,
    compared,
    from_directories,
    make_sweep,
    read,
    write_sweep,
)

STEPS = 12


def sweep(pairs=4, **arguments):
    return make_sweep(pairs=pairs, steps=STEPS, **arguments)


def with_summaries(runs, root, change):
    """Write the runs and change each summary: ``change(summary, arm, block)``."""
    for directory in write_sweep(runs, root):
        summary, config = directory.summary(), directory.config()
        change(summary, config["kernel"]["name"], config["block"])
        directory.file("summary.json").write_text(json.dumps(summary))
    return from_directories(root)


def throughput(values):
    """Set tokens/s from ``values[arm][block]``."""

    def change(summary, arm, block):
        summary["steady"]["tokens_per_s"] = values[arm][block]

    return change


def test_missing_blocks_and_extra_replicates(tmp_path):
    runs = sweep(pairs=6, effect=0.05, seed=2)
    del runs[2], runs[6]
    found = compared(runs, tmp_path)
    assert found.verdict == "faster"
    assert len(found.pairs) == 4
    assert sum("no partner" in item.reason for item in found.left_out) == 2


@pytest.mark.parametrize("bad", [0, -5.0, "nan", "inf", None, "lots"])
def test_a_throughput_that_is_no_number_leaves_its_run_out(bad, tmp_path):
    def change(summary, arm, block):
        if arm != "baseline" and block == 2:
            summary["steady"] |= {"tokens_per_s": bad, "tps_per_rank": bad}

    runs = with_summaries(sweep(pairs=5, effect=0.05, seed=2), tmp_path, change)
    found = compare(runs, REQUEST)
    assert len(found.pairs) == 4
    assert any("steady tokens/s is" in item.reason for item in found.left_out)
    assert math.isfinite(found.effect("throughput").ratio)


def test_all_throughputs_bad_is_unresolved(tmp_path):
    def change(summary, arm, block):
        summary["steady"]["tokens_per_s"] = float("nan")

    assert compare(with_summaries(sweep(), tmp_path, change), REQUEST).verdict == "unresolved"


def test_the_same_value_in_every_run_is_no_measurement(tmp_path):
    values = {"baseline": [100.0] * 4, "nki_rope": [103.0] * 4}
    found = compare(with_summaries(sweep(), tmp_path, throughput(values)), REQUEST)
    assert found.verdict == "unresolved"
    assert "exactly the same value" in found.effect("throughput").reason


def test_a_constant_ratio_over_varying_runs_is_an_effect(tmp_path):
    """The control of the test above: no spread of the ratio, but runs that vary."""
    base = [100.0, 101.0, 99.0, 102.0]
    values = {"baseline": base, "nki_rope": [1.03 * value for value in base]}
    assert compare(with_summaries(sweep(), tmp_path, throughput(values)), REQUEST).verdict == "faster"


def test_coarse_rounding_widens_the_interval(tmp_path):
    """tps printed as 12 tells nothing about 1 %."""

    def change(summary, arm, block):
        summary["steady"] |= {"tps_per_rank": 12.0, "tokens_per_s": 768.0 + block * 1e-9}

    effect = compare(with_summaries(sweep(), tmp_path, change), REQUEST).effect("throughput")
    assert effect.verdict == "unresolved"
    assert effect.high - 1 == pytest.approx(0.5 / 12, rel=0.05)


def test_a_copied_directory_is_no_replicate(tmp_path):
    runs = read(sweep(pairs=1), tmp_path)
    from dataclasses import replace

    copies = [
        replace(run, run_id=f"{run.run_id}-{number}", config={**run.config, "block": number})
        for number in range(5)
        for run in runs
    ]
    found = compare(copies, REQUEST)
    assert len(found.pairs) == 1
    assert sum("a copy of" in item.reason for item in found.left_out) == 8


def test_an_outlier_is_shown_and_kept(tmp_path):
    runs = sweep(pairs=8, seed=3)
    odd = candidates(runs)[4]
    odd.step_s *= 1.2
    found = compared(runs, tmp_path)
    effect = found.effect("throughput")
    assert effect.outlying == (odd.run_id,)
    assert effect.pairs == 8
    assert effect.verdict == "unresolved"


def test_compile_time_needs_the_same_cache(tmp_path):
    def change(summary, arm, block):
        summary["warmup"]["cache"] = "cold" if block == 0 and arm == "baseline" else "warm"

    effect = compare(with_summaries(sweep(pairs=5), tmp_path, change), REQUEST).effect("compile_time")
    assert effect.pairs == 4
    assert "warmup.cache is cold against warm" in effect.missing[0]


def test_a_run_left_out_for_a_broken_loss_still_counts_against_its_arm(tmp_path):
    runs = sweep(pairs=5)
    broken = candidates(runs)[0]
    broken.loss[5:] = np.nan
    broken.checks.append({"name": "losses_finite", "verdict": "fail", "evidence": "step 6"})
    found = compared(runs, tmp_path)
    assert found.loss.verdict == "different"
    assert broken.run_id in found.loss.reason


def test_broken_runs_in_both_arms_prove_nothing(tmp_path):
    runs = sweep(pairs=5)
    for broken in (candidates(runs)[0], baselines(runs)[2]):
        broken.loss[5:] = np.nan
        broken.state = "failed"
    assert compared(runs, tmp_path).loss.verdict == "unresolved"


def test_empty_and_torn_run_directories_are_left_out(tmp_path):
    directories = write_sweep(sweep(pairs=5, effect=0.05, seed=2), tmp_path)
    directories[0].file("summary.json").write_text('{"steps": 12, "sta')
    directories[2].file("rows.jsonl").write_bytes(directories[2].file("rows.jsonl").read_bytes()[:-40])
    directories[5].file("status.json").write_text("{}")
    directories[6].file("config.yaml").write_text("a: [")
    found = compare(from_directories(tmp_path), REQUEST)
    assert found.verdict == "unresolved"
    assert found.loss.verdict == "unresolved"


def test_scopes_are_never_mixed(tmp_path):
    """Logs from elsewhere may not say how many ranks they had: then all runs count per rank, or none."""

    def change(summary, arm, block):
        if arm == "baseline" and block == 1:
            summary["steady"]["tokens_per_s"] = None

    found = compare(with_summaries(sweep(pairs=5, effect=0.05, seed=1), tmp_path, change), REQUEST)
    effect = found.effect("throughput")
    assert effect.quantity.unit == "tokens/s per rank"
    assert effect.pairs == 5
    assert 1.03 < effect.ratio < 1.07
