"""Which files a data configuration names, and what it says when there are none (no torch)."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.data import DataConfig, resolve


def tokenizer_in(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_pydoc_needs_no_file() -> None:
    source = resolve(DataConfig())
    assert (source.name, source.files, source.tokenizer) == ("pydoc", (), None)


def test_a_directory_is_read_in_order_of_names_and_a_file_as_it_is(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "notes.txt"):
        (tmp_path / name).write_text('{"body": "x"}\n')
    local = DataConfig(name="local", kind="local", path=".", text_field="body")
    assert resolve(local, base=tmp_path).files == (str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"))
    one = resolve(DataConfig(name="local", kind="local", path="b.jsonl"), base=tmp_path)
    assert one.files == (str(tmp_path / "b.jsonl"),)


def test_c4_test_comes_from_a_checkout(tmp_path: Path) -> None:
    tokenizer = tokenizer_in(tmp_path / "tests" / "assets" / "tokenizer")
    (tmp_path / "tests" / "assets" / "c4_test").mkdir()
    (tmp_path / "tests" / "assets" / "c4_test" / "data.json").write_text('{"text": "x"}\n')
    source = resolve(DataConfig(name="c4_test", kind="c4_test", checkout=str(tmp_path)))
    assert source.files == (str(tmp_path / "tests" / "assets" / "c4_test" / "data.json"),)
    assert source.tokenizer == str(tokenizer)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DataConfig(kind="c5"), "data.kind is 'c5', expected one of pydoc, c4_test, local"),
        (DataConfig(kind="local"), "name a directory of .jsonl files or one file with data.path=PATH"),
        (DataConfig(kind="local", path="nowhere"), "no such file or directory"),
        (DataConfig(kind="local", path="."), "holds no .jsonl or .json file"),
        (DataConfig(kind="c4_test"), "data.checkout=DIR or TORCHTITAN_DIR=DIR"),
        (DataConfig(tokenizer="."), "is no tokenizer directory"),
    ],
)
def test_what_cannot_be_read_is_said_with_what_to_type(config: DataConfig, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(config, base=tmp_path)
