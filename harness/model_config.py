"""config.json of a Hugging Face checkpoint, read as the shape of a Qwen3 and compared with the model to be built.

Transformers has written the same facts under several names: ``rope_theta`` at the top until version 4, within
``rope_parameters`` from 5 on; ``torch_dtype``, now ``dtype``; ``num_experts``, now ``num_local_experts``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.progress import printable
from harness.shapes import ModelShape

CONFIG = "config.json"
MAX_BYTES = 10_000_000
DENSE, MOE = "qwen3", "qwen3_moe"
FIELDS = {
    "num_layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "moe_ffn": "moe_intermediate_size",
    "num_experts": "num_experts",
    "top_k": "num_experts_per_tok",
    "vocab": "vocab_size",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
}
"""Field of ModelShape: key of config.json. ``max_positions`` is no part of the weights and is not compared."""
ONLY_DENSE, ONLY_MOE = ("ffn",), ("moe_ffn", "num_experts", "top_k")
FLOATS = ("rope_theta", "norm_eps")
FIXED: dict[str, tuple[object, tuple[object, ...]]] = {
    "hidden_act": ("silu", ("silu",)),
    "attention_bias": (False, (False,)),
    "use_sliding_window": (False, (False,)),
    "rope_type": ("default", ("default",)),
    "quantization_config": (None, (None,)),
}
"""Key: (Transformers' default, what the paths build). Nothing of it can be adopted."""
FIXED_MOE: dict[str, tuple[object, tuple[object, ...]]] = {
    "norm_topk_prob": (False, (True,)),
    "decoder_sparse_step": (1, (1,)),
    "mlp_only_layers": ([], ([], None)),
}


@dataclass(frozen=True)
class Difference:
    """One fact on which config.json and the model disagree."""

    key: str
    """Of config.json."""
    file: object
    """Value there; None where it is missing."""
    model: object
    """Value of the model that will be built."""
    field: str | None = None
    """Field of ModelShape that can take the file's value; None where the paths build one value only."""

    def __str__(self) -> str:
        return f"{self.key} is {printable(str(self.file))[:80]} in {CONFIG}, {self.model} in the model"


def read_config(directory: Path) -> dict[str, Any]:
    """The object in config.json.

    Raises:
        ValueError: it is absent, or no JSON object.
    """
    file, shown = directory / CONFIG, printable(str(directory / CONFIG))
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ValueError(f"{shown} has {file.stat().st_size:,} bytes: no configuration is that long")
        config = json.loads(file.read_bytes())
    except OSError as error:
        raise ValueError(f"{shown} cannot be read: {error.strerror}; {_where(directory)}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{shown} is no JSON: {printable(str(error))[:100]}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{shown} is no JSON object")
    return config


def _where(directory: Path) -> str:
    """A run directory is easily named for the export in it."""
    inner = directory / "export"
    return f"try {printable(str(inner))}" if (inner / CONFIG).is_file() else "it belongs beside weights"


def facts(config: Mapping[str, Any]) -> dict[str, object]:
    """What config.json says of the model under one name each, whatever version wrote it; absent is not in it."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = rope if isinstance(rope, dict) else {}
    other_names = {
        "rope_theta": rope.get("rope_theta", config.get("rope_theta")),
        "rope_type": rope.get("rope_type", rope.get("type")),
        "num_experts": config.get("num_experts", config.get("num_local_experts")),
        "dtype": config.get("dtype", config.get("torch_dtype")),
    }
    named = [*FIELDS.values(), *FIXED, *FIXED_MOE, "model_type"]
    values = {key: config.get(key) for key in named} | other_names
    found = {key: value for key, value in values.items() if value is not None}
    found.setdefault("tie_word_embeddings", False)  # Transformers' default for Qwen3, which it leaves out
    if "head_dim" not in found and _is_count(found.get("hidden_size")) and _is_count(found.get("num_attention_heads")):
        dense = found.get("model_type") == DENSE
        found["head_dim"] = 128 if dense else found["hidden_size"] // found["num_attention_heads"]
    return found


def differences(config: Mapping[str, Any], shape: ModelShape) -> list[Difference]:
    """Where config.json and ``shape`` disagree, field by field; empty where it describes that model."""
    found, kind = facts(config), MOE if shape.is_moe else DENSE
    if found.get("model_type", kind) != kind:
        return [Difference("model_type", found["model_type"], kind)]
    leave = ONLY_DENSE if shape.is_moe else ONLY_MOE
    wrong = [
        Difference(key, found.get(key), getattr(shape, field), field)
        for field, key in FIELDS.items()
        if field not in leave and not _same(found.get(key), getattr(shape, field))
    ]
    for key, (default, built) in (FIXED | (FIXED_MOE if shape.is_moe else {})).items():
        if (value := found.get(key, default)) not in built:
            wrong.append(Difference(key, value, built[0]))
    return wrong


def adopt(shape: ModelShape, wrong: Iterable[Difference]) -> tuple[ModelShape, list[Difference]]:
    """``shape`` with the file's values, and which of the differences that settled.

    A missing value, one of the wrong kind, and what the paths build in one way only stay as they are.
    """
    taken = [difference for difference in wrong if difference.field and _usable(difference)]
    values = {str(d.field): float(d.file) if d.field in FLOATS else d.file for d in taken}  # type: ignore[arg-type]
    return replace(shape, **values), taken  # type: ignore[arg-type]


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """The shape that config.json describes by itself.

    Raises:
        ValueError: it is no Qwen3's, or lacks a value or has an impossible one; all of them are named.
    """
    found = facts(config)
    kind = found.get("model_type")
    if kind not in (DENSE, MOE):
        raise ValueError(f"model_type is {printable(str(kind))[:80]} in {CONFIG}, {DENSE} or {MOE} was expected")
    leave = ONLY_DENSE if kind == MOE else ONLY_MOE
    wanted = {field: key for field, key in FIELDS.items() if field not in leave}
    bad = [
        f"{key}={printable(str(found.get(key)))[:80]}"
        for field, key in wanted.items()
        if not _fits(field, found.get(key))
    ]
    if bad:
        raise ValueError(f"{CONFIG} lacks or garbles {', '.join(bad)}")
    values: dict[str, Any] = {field: found[key] for field, key in wanted.items()}
    return ModelShape(**({"ffn": 0} | values))


def stored_dtype(config: Mapping[str, Any]) -> str | None:
    """The type that config.json names for the weights. Not compared with the training's: torchtitan keeps parameters
    in ``training.dtype`` and converts what it loads, so that a difference changes precision, not the model."""
    value = facts(config).get("dtype")
    return printable(value)[:40].removeprefix("torch.") if isinstance(value, str) else None


def _usable(difference: Difference) -> bool:
    return difference.field is not None and _fits(difference.field, difference.file)


def _fits(field: str, value: object) -> bool:
    """Whether a value from a file can be the value of a field of ModelShape."""
    if field == "tied":
        return isinstance(value, bool)
    if field in FLOATS:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e30
    return _is_count(value)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value < 2**31


def _same(file: object, model: object) -> bool:
    """Equal, and no number for a truth value or the other way round."""
    return file == model and isinstance(file, bool) == isinstance(model, bool)
