"""What may not be compared is refused by name, and what proves nothing is left out by name."""

from __future__ import annotations

import pytest

from analysis.gate import as_text
from tests.analysis.sweeps import baselines, candidates, compared, make_sweep, request

STEPS = 12


def sweep(pairs=3, **arguments):
    return make_sweep(pairs=pairs, steps=STEPS, **arguments)


def setting(group, key, value):
    def change(run):
        run.config[group][key] = value

    return change


def fact(group, key, value):
    def change(run):
        run.manifest[group][key] = value

    return change


def rehearsal(run):
    run.config["rehearsal"] = True


UNDECLARED = [
    ("train.seq_len", setting("train", "seq_len", 2048), "4096", "2048"),
    ("platform.num_ranks", setting("platform", "num_ranks", 32), "64", "32"),
    ("train.dtype", setting("train", "dtype", "float32"), "bfloat16", "float32"),
    ("versions.torch", fact("versions", "torch", "2.13.0"), "2.14.0", "2.13.0"),
    ("versions.neuronx-cc", fact("versions", "neuronx-cc", "2.30"), "not recorded", "2.30"),
    ("git.commit", fact("git", "commit", "1" * 40), "0" * 40, "1" * 40),
    ("git.dirty", fact("git", "dirty", True), "false", "true"),
    ("git.changes", fact("git", "changes", "b" * 16), "none", "b" * 16),
    ("data.name", setting("data", "name", "pydoc"), "c4_test", "pydoc"),
    ("train.seed", setting("train", "seed", 2), "1", "2"),
    ("rehearsal", rehearsal, "false", "true"),
    ("platform.lnc", setting("platform", "lnc", 1), "2", "1"),
    ("platform.peak_flops_per_rank", setting("platform", "peak_flops_per_rank", 79e12), "null", "79000000000000"),
    ("init.mode", setting("init", "mode", "pretrained"), "random", "pretrained"),
    ("train.log_freq", setting("train", "log_freq", 2), "1", "2"),
    ("phases.rule", setting("phases", "rule", "skip_first"), "settle", "skip_first"),
    ("scale.num_layers", setting("scale", "num_layers", 2), "null", "2"),
    ("hardware.hostname", fact("hardware", "hostname", "node2"), "synthetic", "node2"),
    ("environment.OMP_NUM_THREADS", fact("environment", "OMP_NUM_THREADS", "8"), "2", "8"),
    ("environment.NEURON_CC_FLAGS", fact("environment", "NEURON_CC_FLAGS", "-O1"), "not recorded", "-O1"),
    ("shape.hidden", fact("shape", "hidden", 64), "2560", "64"),
]


@pytest.mark.parametrize(("key", "change", "before", "after"), UNDECLARED, ids=[item[0] for item in UNDECLARED])
def test_an_undeclared_difference_is_named_with_both_values(key, change, before, after, tmp_path):
    runs = sweep()
    for run in candidates(runs):
        change(run)
    found = compared(runs, tmp_path)
    assert found.verdict == "not comparable"
    assert not found.effects
    named = {item.key: item for item in found.gate.undeclared}
    assert named.keys() == {key}
    assert (named[key].baseline, named[key].candidate) == (before, after)


def test_equal_arms_pass_the_gate(tmp_path):
    """The control of all cases above."""
    found = compared(sweep(), tmp_path)
    assert found.comparable
    assert [item.key for item in found.gate.declared] == ["kernel.name"]


def test_the_number_of_steps_is_compared(tmp_path):
    runs = sweep()
    for run in candidates(runs):
        run.config["train"]["steps"] = STEPS + 1
    assert [item.key for item in compared(runs, tmp_path).gate.undeclared] == ["train.steps"]


def test_another_peak_in_the_summary_is_named(tmp_path):
    """The table of peaks can change with equal configurations: the peak that was used counts."""
    from analysis.comparison import compare
    from harness.rundir import find_runs
    from tests.analysis.sweeps import REQUEST, from_directories, write_sweep

    write_sweep(sweep(), tmp_path)
    for directory in find_runs(tmp_path):
        summary = directory.summary()
        summary["flops"]["peak_per_rank"] = 79e12 if "baseline" in directory.run_id else 83e12
        directory.write_json("summary.json", summary)
    found = compare(from_directories(tmp_path), REQUEST)
    assert [item.key for item in found.gate.undeclared] == ["flops.peak_per_rank"]


def test_a_difference_in_one_run_only_is_seen(tmp_path):
    runs = sweep()
    runs[3].config["train"]["seq_len"] = 2048
    found = compared(runs, tmp_path)
    assert found.gate.undeclared[0].key == "train.seq_len"
    assert "--where train.seq_len=" in found.gate.hint


def test_a_difference_within_both_arms_is_seen(tmp_path):
    """Half of the pairs on another torch: equal inside each pair, but not one comparison."""
    runs = sweep(pairs=4)
    for run in runs[:4]:
        run.manifest["versions"]["torch"] = "2.13.0"
    found = compared(runs, tmp_path)
    assert [item.key for item in found.gate.undeclared] == ["versions.torch"]
    assert "2 runs" in found.gate.undeclared[0].baseline


def test_seeds_may_differ_from_pair_to_pair_but_not_inside_one(tmp_path):
    runs = sweep()
    for run in runs:
        run.config["train"]["seed"] = 10 + run.config["block"]
    assert compared(runs, tmp_path / "equal").comparable
    runs[0].config["train"]["seed"] = 99
    assert [item.key for item in compared(runs, tmp_path / "unequal").gate.undeclared] == ["train.seed"]


def test_what_is_told_is_allowed_except_a_rehearsal(tmp_path):
    runs = sweep()
    for run in candidates(runs):
        run.config["train"]["seq_len"] = 2048
    assert compared(runs, tmp_path / "told", request(allow=("train.seq_len",))).comparable
    assert compared(runs, tmp_path / "group", request(allow=("train",))).comparable
    for run in candidates(runs):
        rehearsal(run)
    found = compared(runs, tmp_path / "rehearsal", request(allow=("train.seq_len", "rehearsal")))
    assert [item.key for item in found.gate.undeclared] == ["rehearsal"]
    assert "never compared" in found.gate.hint


def test_a_declared_group_does_not_cover_a_key_that_only_begins_alike(tmp_path):
    runs = sweep()
    for run in candidates(runs):
        run.config["kernel_like"] = {"name": "x"}
    assert [item.key for item in compared(runs, tmp_path).gate.undeclared] == ["kernel_like.name"]


def test_where_it_ran_and_who_shows_it_is_not_compared(tmp_path):
    runs = sweep()
    for run in candidates(runs):
        run.config["tracking"] = {"uri": "http://elsewhere"}
        run.config["launch"] = {"stall_s": 1.0}
        run.manifest["environment"]["NEURON_RT_ROOT_COMM_ID"] = f"10.0.0.1:{run.config['order']}"
        run.manifest["environment"]["SLURM_JOB_ID"] = str(run.config["order"])
    assert compared(runs, tmp_path).comparable


# -- left out ---------------------------------------------------------------------------------------------------------


def failed_check(run):
    run.checks.append({"name": "kernel_executed", "verdict": "fail", "evidence": "0 of 36 layers"})


def unknown_verdict(run):
    run.checks.append({"name": "weights", "verdict": None, "evidence": ""})


def crashed(run):
    run.state, run.reason = "failed", "rank 3 ran out of memory"


def still_running(run):
    run.state = "running"


def recompiling(run):
    run.step_s[2::2] *= 4


def too_short(run):
    run.step_s, run.config["train"]["steps"] = run.step_s[:3], STEPS


LEFT_OUT = [
    (failed_check, "kernel_executed (0 of 36 layers)"),
    (unknown_verdict, "check failed: weights"),
    (crashed, "status is failed: rank 3 ran out of memory"),
    (still_running, "status is running"),
    (recompiling, "no steady part"),
    (too_short, "no steady part: phase is too_short"),
]


@pytest.mark.parametrize(("change", "reason"), LEFT_OUT, ids=[item[0].__name__ for item in LEFT_OUT])
def test_a_run_that_proves_nothing_is_left_out_with_its_partner(change, reason, tmp_path):
    runs = sweep(pairs=4)
    broken = candidates(runs)[1]
    change(broken)
    found = compared(runs, tmp_path)
    assert [pair.label for pair in found.pairs] == ["block 0", "block 2", "block 3"]
    reasons = {item.run.run_id: item.reason for item in found.left_out}
    assert reason in reasons[broken.run_id]
    partner = next(run for run in baselines(runs) if run.config["block"] == broken.config["block"])
    assert reasons.keys() == {broken.run_id, partner.run_id}
    assert "no partner" in reasons[partner.run_id]


def test_skipped_checks_are_no_failures_and_failures_can_be_ignored(tmp_path):
    runs = sweep()
    for run in runs:
        run.checks.append({"name": "reference_loss", "verdict": "skipped", "evidence": "too large"})
    assert len(compared(runs, tmp_path / "skipped").pairs) == 3
    failed_check(runs[0])
    assert len(compared(runs, tmp_path / "failed").pairs) == 2
    ignoring = request(ignore_checks=("kernel_executed",))
    assert len(compared(runs, tmp_path / "ignored", ignoring).pairs) == 3


def test_a_recompile_in_most_steps_is_no_steady_part_whatever_the_phase_says(tmp_path):
    from analysis.gate import leave_out
    from tests.analysis.sweeps import read

    run = read(sweep(pairs=1), tmp_path)[0]
    run.summary["recompile_steps"] = [3, 5, 7, 9, 11, 12]  # of 11 steady steps, phase "steady"
    kept, left = leave_out([run], "baseline")
    assert not kept
    assert "6 of 11 steps after warm-up recompiled" in left[0].reason


def test_values_compare_as_text_but_versions_are_no_numbers():
    assert as_text(1.0) == as_text(1) == "1"
    assert as_text("2.10") != as_text("2.1")
    assert as_text(True) == as_text("True") == "true"
    assert as_text([1.0, "a"]) == "[1, a]"
    assert as_text(None) == "null"
