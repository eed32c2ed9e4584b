"""Arms of different paths: the model follows from the path, the work of a step does not."""

from __future__ import annotations

from analysis.selection import Selector
from analysis.wording import headline, notes
from tests.analysis.sweeps import compared, make_sweep, request

STEPS = 12
PATHS = request(baseline=Selector.parse(["path=native_4b"]), candidate=Selector.parse(["path=hf_4b"]))


def sweep():
    """The second arm is another path: another builder, another shape."""
    runs = make_sweep(pairs=4, steps=STEPS, seed=1, kernels=("baseline", "hf"))
    for run in others(runs):
        run.config["path"] = {"name": "hf_4b", "backend": "transformers", "builder": "transformers_modeling"}
        run.manifest["shape"] |= {"rope_theta": 5e6}
    for run in runs:
        run.config["kernel"]["name"] = "baseline"
    return runs


def others(runs):
    return [run for run in runs if run.run_id.endswith("hf")]


def test_a_path_is_compared_without_further_words(tmp_path):
    found = compared(sweep(), tmp_path, PATHS)
    assert found.comparable
    assert found.verdict in ("equivalent", "unresolved")
    keys = {item.key for item in found.gate.declared}
    assert keys == {"path.name", "path.backend", "path.builder", "shape.rope_theta"}
    assert any("The paths train different models" in note for note in notes(found))


def test_everything_else_is_still_gated(tmp_path):
    runs = sweep()
    for run in others(runs):
        run.config["train"]["seq_len"] = 2048
        run.manifest["versions"]["torch"] = "2.13.0"
    found = compared(runs, tmp_path, PATHS)
    assert [item.key for item in found.gate.undeclared] == [
        "train.seq_len",
        "versions.torch",
    ]
    assert found.gate.hint.endswith("--allow train.seq_len versions.torch")


def with_one_rank():
    runs = sweep()
    for run in others(runs):
        run.config["platform"]["num_ranks"] = 1
        run.config["train"]["global_batch_size"] = 32
    return runs


def test_other_ranks_are_refused_with_what_to_type(tmp_path):
    found = compared(with_one_rank(), tmp_path, PATHS)
    assert "platform.num_ranks" in headline(found)
    assert "same number of ranks, e.g. platform.num_ranks=1" in found.gate.hint


def test_other_ranks_that_are_asked_for_are_named(tmp_path):
    allowed = ("platform.num_ranks", "train.global_batch_size")
    found = compared(
        with_one_rank(), tmp_path, request(baseline=PATHS.baseline, candidate=PATHS.candidate, allow=allowed)
    )
    assert found.comparable
    (note,) = (note for note in notes(found) if "not the same work" in note)
    assert "platform.num_ranks: baseline 64, candidate 1" in note
    assert "train.global_batch_size: baseline 64, candidate 32" in note


def test_a_shape_does_not_follow_from_a_kernel(tmp_path):
    """The control: only a declared path explains another model."""
    runs = make_sweep(pairs=3, steps=STEPS)
    for run in runs:
        if run.config["kernel"]["name"] == "nki_rope":
            run.manifest["shape"]["num_layers"] = 4
    assert [item.key for item in compared(runs, tmp_path).gate.undeclared] == ["shape.num_layers"]
