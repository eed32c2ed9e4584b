"""Corpus, tokenizer and model configuration: the same bytes each time, whole files only, whoever makes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.data import DataConfig, TextSource, resolve
from harness.paths import load_path
from harness.titan.assets import prepare_data, pydoc_corpus, tokenizer_entries, transformers_config

pytest.importorskip("tokenizers", reason="tokenizers not installed (extra: train)")

PREPARE = """
import sys
from pathlib import Path
from harness.data import DataConfig, resolve
from harness.titan.assets import prepare_data
print(prepare_data(resolve(DataConfig()), cache=Path(sys.argv[1]), vocab=int(sys.argv[2])).tokenizer)
"""


def start(cache: Path, *, vocab: int, threads: str) -> subprocess.Popen[str]:
    environment = os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", PREPARE, str(cache), str(vocab)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_processes_at_once_agree_on_one_complete_result(tmp_path: Path) -> None:
    """Four at once in one cache, and one with other threads in another cache: the same names, the same bytes."""
    together = [start(tmp_path / "shared", vocab=512, threads="1") for _ in range(4)]
    alone = start(tmp_path / "alone", vocab=512, threads="2")
    answers = {process.communicate(timeout=60)[0].strip() for process in together}
    alone.communicate(timeout=60)
    assert len(answers) == 1
    assert Path(answers.pop()).is_dir()
    assert contents(tmp_path / "shared") == contents(tmp_path / "alone")
    assert len(list((tmp_path / "shared").iterdir())) == 2  # corpus and tokenizer, nothing half-written left behind


def test_the_tokenizer_gives_back_any_text_and_fits_the_vocabulary(workspace: Path) -> None:
    from tokenizers import Tokenizer

    data = prepare_data(resolve(DataConfig()), cache=workspace / "cache", vocab=2048)
    tokenizer = Tokenizer.from_file(str(Path(data.tokenizer) / "tokenizer.json"))
    for text in ("The assert statement", "naïve — 𝛼 ∈ ℝ\n\ttabs", "\x00\x7f"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() == tokenizer_entries(Path(data.tokenizer)) == 2048
    assert tokenizer.token_to_id("<|endoftext|>") == 0


def test_the_corpus_is_python_s_own_help(workspace: Path) -> None:
    lines = pydoc_corpus(workspace / "cache").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert len(texts) > 1000
    assert all(len(text) >= 80 for text in texts)
    assert any("assert" in text for text in texts)


def test_another_text_or_vocabulary_is_another_cache_entry(tmp_path: Path) -> None:
    def tokenizer(text: str, vocab: int) -> str:
        file = tmp_path / "text.jsonl"
        file.write_text(json.dumps({"text": text}) + "\n")
        source = TextSource(name="local", files=(str(file),), text_field="text", tokenizer=None)
        return prepare_data(source, cache=tmp_path / "cache", vocab=vocab).tokenizer

    first = tokenizer("one two three " * 50, 300)
    assert tokenizer("one two three " * 50, 300) == first
    assert tokenizer("one two three " * 50, 310) != first
    assert tokenizer("four five six " * 50, 300) != first


def test_a_tokenizer_larger_than_the_model_is_refused(workspace: Path) -> None:
    data = prepare_data(resolve(DataConfig()), cache=workspace / "cache", vocab=2048)
    source = TextSource(name="pydoc", files=(), text_field="text", tokenizer=data.tokenizer)
    with pytest.raises(ValueError, match="has 2,048 entries, but the model's vocabulary is 2,000"):
        prepare_data(source, cache=workspace / "cache", vocab=2000)
    with pytest.raises(ValueError, match="needs a vocabulary of at least 259, not 100"):
        prepare_data(resolve(DataConfig()), cache=workspace / "cache", vocab=100)


@pytest.mark.titan
@pytest.mark.parametrize("name", ["hf_4b", "moe_nki"])
def test_transformers_reads_the_written_configuration_as_it_was_meant(name: str, workspace: Path) -> None:
    from transformers import AutoConfig

    shape = load_path(name).full_shape()
    config = AutoConfig.from_pretrained(transformers_config(shape, cache=workspace / "cache"))
    assert (config.num_hidden_layers, config.hidden_size, config.head_dim) == (shape.num_layers, shape.hidden, 128)
    assert (config.num_attention_heads, config.num_key_value_heads) == (32, shape.num_kv_heads)
    assert config.rope_parameters["rope_theta"] == shape.rope_theta
    assert config.tie_word_embeddings is shape.tied
    assert config.rms_norm_eps == 1e-6
    if shape.is_moe:
        assert (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size) == (64, 4, 768)
