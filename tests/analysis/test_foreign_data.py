"""Data that other people might bring: gaps, extra runs, impossible numbers, copies, torn files."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from analysis.comparison import compare
from analysis.wording import headline, notes
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


# -- documents of a kind that nobody expects --------------------------------------------------------------------------


def edit(name, change, which=slice(None)):
    """Change a JSON document of some of the run directories."""

    def damage(directories):
        for directory in directories[which]:
            document = json.loads(directory.file(name).read_text())
            change(document)
            directory.file(name).write_text(json.dumps(document))

    return damage


def edit_rows(key, value, which=slice(None)):
    def damage(directories):
        for directory in directories[which]:
            rows = [json.loads(line) | {key: value} for line in directory.file("rows.jsonl").read_text().splitlines()]
            directory.file("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    return damage


def set_to(key, value):
    return lambda document: document.__setitem__(key, value)


HUGE = 10**400
ODD = {
    "recompile_steps is a number": edit("summary.json", set_to("recompile_steps", 3)),
    "warm-up is infinite": edit("summary.json", set_to("warmup_steps", "inf")),
    "flops is a list": edit("summary.json", set_to("flops", [1])),
    "environment is a list": edit("manifest.json", set_to("environment", ["A=1"])),
    "versions is a text": edit("manifest.json", set_to("versions", "2.14")),
    "start is a number": edit("status.json", set_to("started", 12345)),
    "some starts are missing": edit("status.json", set_to("started", None), slice(0, 3)),
    "reason is an object": edit("status.json", set_to("reason", {"a": 1})),
    "gradient norm is a list": edit_rows("grad_norm", [1]),
    "gradient norm beyond floats": edit_rows("grad_norm", HUGE),
    "memory is an object": edit_rows("memory_gib", {"a": 1}),
    "tps is a text": edit_rows("tps", "fast"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_documents_change_no_verdict_on_throughput(name, tmp_path):
    from analysis.report import to_html
    from analysis.text import to_markdown, to_text

    directories = write_sweep(sweep(pairs=5, effect=0.05, seed=1), tmp_path)
    ODD[name](directories)
    found = compare(from_directories(tmp_path), REQUEST)
    assert found.verdict == "faster"
    assert all(len(form(found)) > 500 for form in (to_html, to_text, to_markdown))


@pytest.mark.parametrize("which", [slice(None), slice(1, 3)], ids=["all runs", "some runs"])
@pytest.mark.parametrize("value", [[1], {"a": 1}, "x", True, HUGE, "nan", "inf", None, 0, -1])
def test_a_loss_that_is_no_number_is_never_equivalent(value, which, tmp_path):
    edit_rows("loss", value, which)(write_sweep(sweep(pairs=5), tmp_path))
    assert compare(from_directories(tmp_path), REQUEST).loss.verdict in ("different", "unresolved")


@pytest.mark.parametrize("step", [None, "x", [1], 1e308, HUGE, -1, 1.5, 2**60])
def test_a_row_without_a_step_is_a_missing_step(step, tmp_path):
    edit_rows("step", step, slice(1, 2))(write_sweep(sweep(pairs=5), tmp_path))
    found = compare(from_directories(tmp_path), REQUEST)
    assert found.loss.verdict == "unresolved"
    assert "loss is missing at 12 steps" in found.loss.reason


def test_a_number_of_steps_from_a_nightmare(tmp_path):
    runs = sweep(pairs=3)
    for run in runs:
        run.config["train"]["steps"] = 10**12
    assert compared(runs, tmp_path).loss.verdict == "unresolved"


@pytest.mark.parametrize("value", [HUGE, 1e308, 1e-320])
def test_an_absurd_throughput_is_not_called(value, tmp_path):
    def change(summary, arm, block):
        if arm != "baseline" and block == 2:
            summary["steady"] |= {"tokens_per_s": value, "tps_per_rank": value}

    found = compare(with_summaries(sweep(pairs=4, effect=0.05, seed=2), tmp_path, change), REQUEST)
    assert found.verdict == "unresolved" or len(found.pairs) == 3
    assert len(headline(found)) < 500


def test_checks_that_cannot_be_read_prove_nothing(tmp_path):
    directories = write_sweep(sweep(pairs=4, effect=0.05, seed=1), tmp_path)
    directories[1].file("checks.json").write_text('[{"name": "kernel_exec')
    found = compare(from_directories(tmp_path), REQUEST)
    assert any("checks.json (cannot be read" in item.reason for item in found.left_out)


def test_what_is_not_recorded_is_named(tmp_path):
    """Torn manifests and configurations, the same in all runs, are equal to each other and prove nothing."""
    directories = write_sweep(sweep(pairs=4, effect=0.05, seed=1), tmp_path)
    for directory in directories:
        directory.file("manifest.json").write_text('{"vers')
        directory.file("checks.json").unlink()
    lines = notes(compare(from_directories(tmp_path), REQUEST))
    assert (
        "Not recorded in some runs, so not proven to be equal: git.commit, versions.torch, hardware.hostname." in lines
    )
    assert any(line.startswith("No check was made in 8 runs") for line in lines)


def test_names_cannot_drive_a_terminal_nor_break_an_encoding(tmp_path, capsys):
    from analysis.__main__ import main

    runs = sweep(pairs=4)
    for run in candidates(runs):
        run.config["kernel"]["name"] = "\x1b[31m<b>ü\u202e"
    directories = write_sweep(runs, tmp_path / "runs")
    edit("summary.json", set_to("phase", "half \ud800 pair"), slice(0, 1))(directories)
    arms = [
        "--baseline",
        "kernel=baseline",
        "--candidate",
        "kernel=\x1b[31m<b>ü\u202e",
        "--runs",
        str(tmp_path / "runs"),
    ]
    for command in (["compare", "--json"], ["compare"], ["report", "--no-mlflow", "--out", str(tmp_path / "r.html")]):
        assert main([*command, *arms]) == 0
        if "--json" in command:
            assert "ü" in json.loads(capsys.readouterr().out)["headline"]  # data, not for the eye
    assert main(["runs", "--runs", str(tmp_path / "runs")]) == 0
    output = capsys.readouterr().out
    assert "ü" in output
    assert not any(char in output for char in "\x1b\u202e\ud800")
    assert "<b>ü" not in (tmp_path / "r.html").read_text()
