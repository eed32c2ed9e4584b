"""Text, tokenizer and model configuration that a rehearsal needs, made on first use and cached (no torch, no network).

Everything is written to a directory named after a digest of its content, in a temporary place that is then renamed:
processes that do it at once end with the same files, and none ever reads a half-written one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.data import TextSource
from harness.shapes import ModelShape
from harness.titan.spec import DataSpec

MIN_PARAGRAPH_CHARS = 80
"""Shorter paragraphs of the help topics are headings and stray lines."""
MAX_TRAINING_CHARS = 8_000_000
"""How much text a tokenizer is trained on at most: enough for a few thousand entries, and seconds."""
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BASE_ALPHABET = 256


def prepare_data(source: TextSource, *, cache: Path, vocab: int) -> DataSpec:
    """Make text and tokenizer ready for training.

    Args:
        cache: directory for what has to be written; created if need be.
        vocab: entries of the model's embedding; a tokenizer trained here has at most so many.

    Raises:
        ValueError: the user's tokenizer has more entries than the model, or the vocabulary is too small for bytes.
    """
    files = source.files or (str(pydoc_corpus(cache)),)
    tokenizer = source.tokenizer or str(byte_level_tokenizer(files, source.text_field, vocab=vocab, cache=cache))
    if source.tokenizer is not None and (entries := tokenizer_entries(Path(source.tokenizer))) > vocab:
        raise ValueError(
            f"the tokenizer in {source.tokenizer} has {entries:,} entries, but the model's vocabulary is {vocab:,}: "
            "choose another data.tokenizer, or leave it out to train one"
        )
    return DataSpec(name=source.name, files=files, text_field=source.text_field, tokenizer=tokenizer)


def pydoc_corpus(cache: Path) -> Path:
    """The paragraphs of Python's help topics as JSON lines, about half a million characters."""
    from pydoc_data.topics import topics

    paragraphs = (
        {"id": f"{name}-{number}", "text": paragraph.strip()}
        for name, topic in sorted(topics.items())
        for number, paragraph in enumerate(re.split(r"\n\s*\n", topic))
        if len(paragraph.strip()) >= MIN_PARAGRAPH_CHARS
    )
    content = "".join(json.dumps(paragraph, ensure_ascii=False) + "\n" for paragraph in paragraphs).encode()
    return (
        _cached(cache, f"pydoc-{_digest(content)}", lambda place: _write(place, "corpus.jsonl", content))
        / "corpus.jsonl"
    )


def byte_level_tokenizer(files: tuple[str, ...], text_field: str, *, vocab: int, cache: Path) -> Path:
    """Directory of a byte-level BPE tokenizer with at most ``vocab`` entries, trained on the beginning of ``files``."""
    if vocab < BASE_ALPHABET + len(SPECIAL_TOKENS):
        raise ValueError(
            f"a byte-level tokenizer needs a vocabulary of at least {BASE_ALPHABET + len(SPECIAL_TOKENS)}, not {vocab}"
        )
    digest = _digest(*(text.encode() for text in _training_texts(files, text_field)))

    def train(place: Path) -> None:
        _train(_training_texts(files, text_field), vocab).save(str(place / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": SPECIAL_TOKENS[0],
            "pad_token": SPECIAL_TOKENS[0],
            "add_bos_token": False,
            "add_eos_token": False,
        }
        _write(place, "tokenizer_config.json", _json(config))

    return _cached(cache, f"bpe{vocab}-{digest}", train)


def transformers_config(shape: ModelShape, *, cache: Path) -> Path:
    """Directory whose config.json describes ``shape`` to Transformers, so that no hub is needed."""
    content = _json(transformers_values(shape))
    return _cached(cache, f"qwen3-{_digest(content)}", lambda place: _write(place, "config.json", content))


def transformers_values(shape: ModelShape) -> dict[str, object]:
    """What config.json says of a model of ``shape``; the token numbers are those of our own tokenizers."""
    config: dict[str, object] = {
        "architectures": ["Qwen3MoeForCausalLM" if shape.is_moe else "Qwen3ForCausalLM"],
        "model_type": "qwen3_moe" if shape.is_moe else "qwen3",
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.max_positions,
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tied,
        "vocab_size": shape.vocab,
    }
    if shape.is_moe:
        config |= {
            "moe_intermediate_size": shape.moe_ffn,
            "num_experts": shape.num_experts,
            "num_experts_per_tok": shape.top_k,
            "norm_topk_prob": True,
        }
    return config


def tokenizer_entries(directory: Path) -> int:
    """Highest token number of a tokenizer directory, plus one."""
    tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    return 1 + max(itertools.chain(ids, (token["id"] for token in tokenizer.get("added_tokens", []))), default=-1)


def _train(texts: Iterator[str], vocab: int):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _training_texts(files: tuple[str, ...], text_field: str) -> Iterator[str]:
    remaining = MAX_TRAINING_CHARS
    for file in files:
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                text = json.loads(line)[text_field]
                yield text[:remaining]
                remaining -= len(text)
                if remaining <= 0:
                    return


def _cached(cache: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """Absolute directory ``cache/name``, filled once by whoever comes first."""
    final = cache.resolve() / name
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=final.parent))
    try:
        fill(place)
        place.chmod(0o755)  # mkdtemp's directory is its owner's alone
        os.rename(place, final)
    except OSError:
        if not final.is_dir():  # lost the race otherwise: the other's content is the same
            raise
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return final


def _write(place: Path, name: str, content: bytes) -> None:
    (place / name).write_bytes(content)


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _digest(*parts: bytes) -> str:
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()[:12]
