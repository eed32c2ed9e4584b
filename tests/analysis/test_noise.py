"""A machine on which identical arms differ cannot show equality, and says so; too few A/A runs are counted out loud."""

from __future__ import annotations

import pytest

from analysis.comparison import compare
from analysis.mlflow_parent import metrics, tags
from analysis.report import to_html
from analysis.synthetic import Machine
from analysis.text import to_data, to_markdown, to_text
from analysis.wording import headline, notes
from tests.analysis.sweeps import REQUEST, compared, make_sweep, read, request

STEPS = 12
NOISY, CALM = 0.03, 0.001


def identical(sd, pairs=6, experiment="aa"):
    machine = Machine(run_sd=sd, step_sd=0.001, drift=0)
    kernels = ("baseline", "baseline")
    return make_sweep(pairs=pairs, steps=STEPS, seed=5, experiment=experiment, kernels=kernels, machine=machine)


def sweep(effect=0.0, **arguments):
    machine = Machine(run_sd=0.001, step_sd=0.001, drift=0)
    return make_sweep(pairs=6, steps=STEPS, seed=1, effect=effect, machine=machine, **arguments)


def throughput(found):
    return found.effect("throughput")


def test_equality_is_not_claimed_where_identical_arms_differ_by_more(tmp_path):
    found = compared([*sweep(), *identical(NOISY)], tmp_path)
    effect = throughput(found)
    assert effect.low > 0.99
    assert effect.high < 1.01
    assert effect.floor > effect.asked == 0.01
    assert found.verdict == effect.verdict == "unresolved"
    floor = f"{100 * effect.floor:.2g} %"
    told = f"A/A runs of this machine differ by up to {floor}, so nothing below that can be told, and 1 % was asked"
    assert effect.reason == told
    assert headline(found).startswith("Unresolved at 1.00 % whether nki_rope is faster than baseline")
    for text in (headline(found), to_text(found), to_html(found), tags(found)["conclusion"]):
        assert told in text
    assert told.replace("|", "") in to_markdown(found)
    assert tags(found)["verdict/throughput"] == "unresolved"
    assert dict(metrics(found))["delta/throughput/noise_floor"] == effect.floor
    data = to_data(found)
    assert data["noise"]["pairs"] == 6
    assert data["quantities"]["throughput"]["margin"] == pytest.approx(effect.floor)
    assert data["quantities"]["throughput"]["asked_margin"] == 0.01
    assert 'class="band floor"' in to_html(found)


def test_on_a_calm_machine_the_same_runs_are_equivalent(tmp_path):
    """The control of the test above."""
    found = compared([*sweep(), *identical(CALM)], tmp_path)
    assert 0 < throughput(found).floor < 0.01
    assert found.verdict == "equivalent"
    assert "equally fast within 1.00 %" in headline(found)
    assert any("no smaller effect is called" in note for note in notes(found))


def test_a_wider_margin_than_the_floor_makes_them_equivalent_again(tmp_path):
    runs = read([*sweep(), *identical(NOISY)], tmp_path)
    floor = throughput(compare(runs, REQUEST)).floor
    assert compare(runs, request(margin=floor * 1.01)).verdict == "equivalent"
    assert compare(runs, request(margin=floor * 0.99)).verdict == "unresolved"


@pytest.mark.parametrize(("effect", "verdict"), [(0.30, "faster"), (-0.30, "slower"), (0.02, "unresolved")])
def test_an_effect_is_called_only_above_the_floor(effect, verdict, tmp_path):
    assert compared([*sweep(effect), *identical(NOISY)], tmp_path / "noisy").verdict == verdict
    assert compared(sweep(effect), tmp_path / "no-floor").verdict == ("slower" if effect < 0 else "faster")


def why_none(found):
    (note,) = (note for note in notes(found) if note.startswith("No A/A noise floor"))
    return note


def test_no_a_a_runs(tmp_path):
    found = compared(sweep(), tmp_path)
    assert "there are no A/A runs; measure it with python -m harness -m +experiment=aa" in why_none(found)
    assert "delta/throughput/noise_floor" not in dict(metrics(found))


@pytest.mark.parametrize(("pairs", "made"), [(1, "1 pair"), (2, "2 pairs")])
def test_too_few_a_a_runs_are_counted(pairs, made, tmp_path):
    found = compared([*sweep(), *identical(NOISY, pairs=pairs)], tmp_path)
    text = f"{2 * pairs} A/A runs found, {2 * pairs} usable here, which make {made} of identical arms; at least 3 are"
    assert text in why_none(found)
    assert throughput(found).floor == 0
    assert found.verdict == "equivalent"


def test_a_a_runs_that_prove_nothing(tmp_path):
    broken = identical(NOISY)
    for run in broken:
        run.state = "failed"
    found = compared([*sweep(), *broken], tmp_path)
    assert "12 A/A runs found, none usable (aa-0000-baseline: status is failed)" in why_none(found)


def test_a_a_runs_of_another_kind(tmp_path):
    other = identical(NOISY)
    for run in other:
        run.manifest["versions"]["torch"] = "2.13.0"
    found = compared([*sweep(), *other], tmp_path)
    assert "of another kind than the baseline (versions.torch: 2.13.0, the baseline 2.14.0)" in why_none(found)


def test_the_seed_of_a_a_runs_does_not_matter(tmp_path):
    other = identical(NOISY)
    for run in other:
        run.config["train"]["seed"] = 100 + run.config["block"]
    assert compared([*sweep(), *other], tmp_path).noise.pairs == 6


def test_an_a_a_comparison_has_no_floor_and_asks_for_none(tmp_path):
    from tests.analysis.sweeps import AA

    found = compared(identical(NOISY), tmp_path, request(baseline=AA, candidate=AA))
    assert found.noise.missing == ""
    assert not any("noise floor" in note for note in notes(found))
