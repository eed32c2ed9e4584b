"""The command line before anything is trained: help, errors and exit codes (no torch)."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.__main__ import accept_plus
from tests.conftest import call


def test_help_lists_paths_and_examples() -> None:
    called = call("harness", "--help")
    assert called.exit_code == 0
    assert "hf_4b, moe_nki, native_4b" in called.stdout
    assert "python -m harness +path=native_4b" in called.stdout


def test_nothing_prints_the_paths_and_exits_2() -> None:
    called = call("harness")
    assert (called.exit_code, called.stdout) == (2, "")
    assert "hf_4b, moe_nki, native_4b" in called.stderr


WRONG = {
    "no path": ([], "path is missing: say path=hf_4b|moe_nki|native_4b"),
    "unknown path": (["path=natve_4b"], "path=natve_4b does not exist: choose path=hf_4b|moe_nki|native_4b"),
    "unknown path, plus": (["+path=natve_4b"], "path=natve_4b does not exist: choose path=hf_4b|moe_nki|native_4b"),
    "unknown platform": (["+path=native_4b", "+platform=tpu"], "choose platform=auto|cpu|cuda|trn2_48xlarge"),
    "unknown key": (["+path=native_4b", "train.stepz=3"], "there is no key train.stepz: train has steps, seq_len"),
    "unknown key, plus": (["+path=native_4b", "+foo=3"], "there is no key foo: the configuration has path, platform"),
    "no number": (["+path=native_4b", "train.steps=abc"], "train.steps=abc Value 'abc' of type 'str'"),
    "no steps": (["+path=native_4b", "train.steps=0"], "train.steps=0: at least 1 was expected"),
    "no ranks": (["+path=native_4b", "platform.num_ranks=0"], "platform.num_ranks=0: at least 1 was expected"),
    "batch": (
        ["+path=native_4b", "train.global_batch_size=5"],
        "train.global_batch_size=5 is no multiple of 2 sequences x 2 ranks: try 4 or 8",
    ),
    "sequence on Trainium": (
        ["+path=native_4b", "platform=trn2_48xlarge", "train.seq_len=600"],
        "train.seq_len=600 is no multiple of 256 (128 x LNC 2), which Trainium kernels need: try 512 or 768",
    ),
    "sequence at LNC 1": (
        ["+path=native_4b", "platform=trn2_48xlarge", "platform.lnc=1", "train.seq_len=100"],
        "train.seq_len=100 is no multiple of 128 (128 x LNC 1), which Trainium kernels need: try 128",
    ),
    "too many layers": (["+path=moe_nki", "scale.num_layers=5"], "scale.num_layers=5: path=moe_nki has 1 to 4 layers"),
    "escaping name": (["+path=native_4b", "experiment_name=../x"], "experiment_name='../x'"),
    "full scale on CPU": (["+path=native_4b", "scale.rehearsal=false"], "full scale does not train on CPU"),
    "no data": (["+path=native_4b", "data=local", "data.path=/nowhere"], "no such file or directory: /nowhere"),
    "weights that are not asked for": (
        ["+path=native_4b", "init.path=/somewhere"],
        "init=random does not load init.path=/somewhere: say init=pretrained, or leave the path out",
    ),
    "pretrained without a path": (["+path=native_4b", "init=pretrained"], "init=pretrained needs init.path=, a dir"),
    "no weights there": (["+path=native_4b", "init=pretrained", "init.path=/nowhere"], "init.path=/nowhere"),
    "another model": (
        ["+path=native_4b", "path.published.num_layers=64"],
        "path native_4b would train another model than it says: num_layers is 64, promised 36",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_configuration_is_one_line_and_exit_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    if not any("platform=" in argument for argument in arguments):
        arguments = [*arguments, "platform=cpu"]
    called = call("harness", *arguments, f"runs={tmp_path / 'runs'}")
    assert called.exit_code == 2
    assert message in called.stderr
    assert len(called.stderr.strip().splitlines()) <= 2
    assert "Traceback" not in called.stderr + called.stdout
    assert not list((tmp_path / "runs").glob("pilot/*"))


def test_plus_is_accepted_for_every_key_but_optional_groups() -> None:
    assert accept_plus("+path=x") == accept_plus("path=x") == "path=x"
    assert accept_plus("++train.steps=3") == "train.steps=3"
    assert accept_plus("+experiment=rope_ab") == "+experiment=rope_ab"
    assert accept_plus("-m") == "-m"


def test_wrong_job_of_a_multirun_stops_it_before_the_first(tmp_path: Path) -> None:
    called = call("harness", "-m", "+path=native_4b,nope", f"runs={tmp_path / 'runs'}")
    assert called.exit_code == 2
    assert "path=nope does not exist" in called.stderr
    assert not list((tmp_path / "runs").glob("pilot/*"))
