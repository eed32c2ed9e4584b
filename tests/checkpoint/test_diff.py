"""Two checkpoints compared, in process and as a user does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.checkpoint.__main__ import main
from harness.checkpoint.diff import compare
from harness.weights import EMBEDDING, HEAD, SINGLE
from tests.weights.checkpoints import TINY, TINY_MOE, values_of, write

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize("shape", [TINY, TINY_MOE], ids=["dense", "experts"])
def test_equal_however_it_is_stored(tmp_path: Path, shape) -> None:
    write(tmp_path / "a", shape)
    write(tmp_path / "b", shape, shards=3)
    write(tmp_path / "c", shape, dtype="F32")
    assert compare(tmp_path / "a", tmp_path / "b").equal
    found = compare(tmp_path / "a", tmp_path / "c")
    assert found.equal
    assert found.max_abs_diff == 0.0
    assert len(found.tensors) == len(found.first.tensors)
    assert "stored in different types (BF16 and F32); values were compared" in found.notes


def test_one_value_in_one_tensor(tmp_path: Path) -> None:
    values = values_of(TINY)
    scale = float(np.abs(values[UP]).max())
    write(tmp_path / "a", TINY, values)
    values[UP][0, 0] += 0.125
    write(tmp_path / "b", TINY, values)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert not found.equal
    (only,) = found.different
    assert (only.name, only.distance.max_abs) == (UP, 0.125)
    assert only.distance.relative == pytest.approx(0.125 / scale)
    assert compare(tmp_path / "a", tmp_path / "b", tolerance=0.125).equal
    assert not compare(tmp_path / "a", tmp_path / "b", tolerance=0.12).equal


def test_a_tied_head_stored_by_one_only(tmp_path: Path) -> None:
    values = values_of(TINY)
    write(tmp_path / "without", TINY, values)
    write(tmp_path / "with", TINY, values | {HEAD: values[EMBEDDING]})
    for one, other in (("with", "without"), ("without", "with")):
        found = compare(tmp_path / one, tmp_path / other)
        assert found.equal
        assert any(note.startswith("lm_head.weight is stored by one only") for note in found.notes)
    write(tmp_path / "other", TINY, values | {HEAD: values[EMBEDDING] + 0.5})
    for one, other in (("other", "without"), ("without", "other")):
        found = compare(tmp_path / one, tmp_path / other)
        assert [item.name for item in found.different] == [HEAD]
        assert found.max_abs_diff == 0.5


def test_an_untied_head_is_a_key_like_others(tmp_path: Path) -> None:
    values = values_of(TINY_MOE)
    write(tmp_path / "a", TINY_MOE, values)
    write(tmp_path / "b", TINY_MOE, {name: value for name, value in values.items() if name != HEAD})
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.only_first == [HEAD]
    assert not found.equal


def test_keys_shapes_and_config(tmp_path: Path) -> None:
    values = values_of(TINY)
    write(tmp_path / "a", TINY, values | {"one": np.zeros(1, np.float32)})
    changed = values | {UP: values[UP].T, "two": np.zeros(1, np.float32)}
    write(tmp_path / "b", TINY, changed, rope_parameters=None, rope_theta=5e6, eos_token_id=7)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert (found.only_first, found.only_second) == (["one"], ["two"])
    assert found.shapes == [f"{UP} is [16, 8] and [8, 16]"]
    assert found.config == ["rope_theta is 1000000.0 and 5000000.0"]
    assert found.notes == ["also different in config.json: eos_token_id"]
    assert not found.different


def test_the_same_theta_in_the_words_of_two_versions(tmp_path: Path) -> None:
    write(tmp_path / "a", TINY)
    write(tmp_path / "b", TINY, rope_parameters=None, rope_theta=1000000, hidden_act=None)
    assert compare(tmp_path / "a", tmp_path / "b").config == []


def test_nan_is_reported_and_never_equal(tmp_path: Path) -> None:
    values = values_of(TINY)
    values[UP][0, 0] = np.nan
    write(tmp_path / "a", TINY, values)
    found = compare(tmp_path / "a", tmp_path / "a", tolerance=1e9)
    assert not found.equal
    assert found.to_json()["different"] == [
        {"name": UP, "dtypes": ["BF16", "BF16"], "max_abs_diff": "nan", "relative": "nan", "nonfinite": [1, 1]}
    ]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = values_of(TINY)
    a, b = str(write(tmp_path / "a", TINY, values)), str(write(tmp_path / "b", TINY, values | {UP: values[UP] + 1}))
    assert main(["diff", a, a]) == 0
    assert capsys.readouterr().out == f"equal: {len(values)} tensors\n"
    assert main(["diff", a, b]) == 1
    out = capsys.readouterr().out
    assert UP in out
    assert out.splitlines()[-1].strip() == f"different: 1 of {len(values)} compared tensors, by 1 at most"
    assert main(["diff", a, b, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["max_abs_diff"] == 1.0
    assert main(["diff", a, b, "--atol", "1"]) == 0


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = str(write(tmp_path / "a", TINY))
    assert main(["diff", a, str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"harness.checkpoint: no such directory: {tmp_path / 'none'}\n"
    for wrong in (["diff", a], ["diff", a, a, "--atol", "-1"], ["look", a], []):
        with pytest.raises(SystemExit) as stop:
            main(wrong)
        assert stop.value.code == 2
    (tmp_path / "a" / SINGLE).write_bytes(b"\x03")
    assert main(["diff", a, a]) == 1
    assert "claims a header of 3 bytes, but has 1" in capsys.readouterr().err


def test_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = values_of(TINY)
    place = write(tmp_path / "a", TINY, values | {HEAD: values[EMBEDDING]}, shards=2)
    assert main(["inspect", str(place), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["parameters"] == TINY.num_params()
    assert said["bytes"] == 2 * (TINY.num_params() + 32 * 8)
    assert (said["tensors"], said["dtypes"]) == (len(values) + 1, {"BF16": len(values) + 1})
    assert (said["tied"], said["head_stored"], len(said["files"])) == (True, True, 2)
    assert said["config"]["rope_theta"] == 1e6
    assert said["keys"] == {"missing": [], "extra": [], "misshaped": []}
    assert main(["inspect", str(place)]) == 0
    out = capsys.readouterr().out
    assert "tied to the embedding, stored a second time" in out
    assert "those of the Qwen3 in its config.json" in out


def test_inspect_of_what_is_no_qwen3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(write(tmp_path, TINY, model_type="\x1b[31mllama"))]) == 0
    out = capsys.readouterr().out
    assert "not compared: model_type is  [31mllama in config.json" in out
    assert "\x1b" not in out


def test_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = values_of(TINY)
    assert main(["verify", str(write(tmp_path / "a", TINY, values)), "--no-reload"]) == 0
    assert "9 checks passed, 1 skipped" in capsys.readouterr().out
    values[UP][0, 0] = np.nan
    assert main(["verify", str(write(tmp_path / "b", TINY, values)), "--no-reload", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert not said["passed"]
    assert [check["name"] for check in said["checks"] if check["verdict"] == "fail"] == ["finite"]
