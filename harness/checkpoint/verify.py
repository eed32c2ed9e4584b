"""Whether a checkpoint is whole, sound and loadable: a list of named checks, each with its evidence."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.checkpoint.values import distance, is_readable, nonfinite
from harness.model_config import read_config, shape_of
from harness.shapes import ModelShape
from harness.weights import (
    EMBEDDING,
    HEAD,
    BadHeader,
    BadIndex,
    BadWeights,
    Keys,
    MissingShard,
    Tensor,
    compare_keys,
    read_tensors,
    some,
)

PASS, FAIL, SKIPPED = "pass", "fail", "skipped"
FILES = (BadIndex.check, MissingShard.check, BadHeader.check)
"""The order in which reading a directory can fail."""
OUT_OF_VOCABULARY = (EMBEDDING, HEAD)


@dataclass(frozen=True)
class Finding:
    """One check of a checkpoint."""

    name: str
    verdict: str
    evidence: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(name: str, wrong: str, right: str) -> Finding:
    """A failure with ``wrong`` as evidence, or a pass where that is empty."""
    return Finding(name, FAIL, wrong) if wrong else Finding(name, PASS, right)


def verify(
    directory: Path, *, reload: bool = True, progress: Callable[[int, int], None] = lambda done, all: None
) -> list[Finding]:
    """All checks, in the order in which one fault causes the next: config, index, shards, headers, keys, shapes,
    vocabulary, finite, tied_head, reload. What a failure above makes pointless is skipped and says so.

    Args:
        reload: let Transformers load the checkpoint, in a process of its own.
        progress: called with the bytes read so far and in all.
    """
    shape, config = _config(directory)
    tensors, files = _files(directory)
    found = [config, *files]
    keys = compare_keys(tensors, shape) if shape and tensors is not None else None
    found += _keys(keys, tensors, shape)
    if tensors is None:
        return [
            *found,
            *(Finding(name, SKIPPED, "the weights cannot be read") for name in ("finite", "tied_head", "reload")),
        ]
    found.append(finite_values(directory, tensors, progress))
    found.append(_tied_head(directory, tensors, shape))
    found.append(_reload(directory, found) if reload else Finding("reload", SKIPPED, "not asked for"))
    return found


def _config(directory: Path) -> tuple[ModelShape | None, Finding]:
    try:
        shape = shape_of(read_config(directory))
    except ValueError as error:
        return None, Finding("config", FAIL, str(error))
    experts = f", {shape.num_experts} experts top {shape.top_k}" if shape.is_moe else ""
    kind = "Qwen3-MoE" if shape.is_moe else "Qwen3"
    return shape, Finding("config", PASS, f"{kind}, {shape.num_layers} layers, hidden {shape.hidden}{experts}")


def _files(directory: Path) -> tuple[dict[str, Tensor] | None, list[Finding]]:
    try:
        tensors = read_tensors(directory)
    except BadWeights as error:
        place = FILES.index(error.check)
        passed = [Finding(name, PASS, "") for name in FILES[:place]]
        skipped = [Finding(name, SKIPPED, f"{error.check} failed") for name in FILES[place + 1 :]]
        return None, [*passed, Finding(error.check, FAIL, str(error)), *skipped]
    shards = {tensor.file for tensor in tensors.values()}
    stored = sum(tensor.end - tensor.begin for tensor in tensors.values())
    evidence = ("consistent", f"{len(shards)} of {len(shards)} there", f"{len(tensors):,} tensors, {stored:,} bytes")
    return tensors, [Finding(name, PASS, text) for name, text in zip(FILES, evidence, strict=True)]


def _keys(keys: Keys | None, tensors: dict[str, Tensor] | None, shape: ModelShape | None) -> list[Finding]:
    """keys, shapes and vocabulary against config.json."""
    if keys is None or tensors is None or shape is None:
        why = "the weights cannot be read" if tensors is None else "config.json describes no model to compare with"
        return [Finding(name, SKIPPED, why) for name in ("keys", "shapes", "vocabulary")]
    kinds = {"missing": keys.missing, "extra": keys.extra}
    wrong = "; ".join(f"{len(names)} {kind}: {some(names)}" for kind, names in kinds.items() if names)
    shapes = [text for text in keys.misshaped if not text.startswith(OUT_OF_VOCABULARY)]
    rows = {name: tensors[name].shape[0] for name in OUT_OF_VOCABULARY if name in tensors and tensors[name].shape}
    others = [f"{name} has {count:,} rows" for name, count in rows.items() if count != shape.vocab]
    shapes += [text for text in keys.misshaped if text.startswith(OUT_OF_VOCABULARY) and not others]
    return [
        judge("keys", wrong, f"{len(tensors):,}, none missing, none extra"),
        judge("shapes", f"{len(shapes)} mis-shaped: {some(shapes)}" if shapes else "", "all as config.json says"),
        judge(
            "vocabulary",
            f"vocab_size is {shape.vocab:,} in config.json, but {', '.join(others)}" if others else "",
            f"{shape.vocab:,} rows",
        ),
    ]


def finite_values(
    directory: Path, tensors: dict[str, Tensor], progress: Callable[[int, int], None] = lambda done, total: None
) -> Finding:
    """Every value is read; what is NaN or infinite is named with its tensor."""
    done, total, bad, unread = 0, sum(tensor.end - tensor.begin for tensor in tensors.values()), [], []
    try:
        for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].file, item[1].begin)):
            progress(done, total)
            done += tensor.end - tensor.begin
            if not is_readable(tensor):
                unread.append(f"{name} ({tensor.dtype})")
            elif count := nonfinite(directory, tensor):
                bad.append(f"{name} has {count:,} of {tensor.count:,} values NaN or infinite ({tensor.dtype})")
    except (OSError, ValueError) as error:
        return Finding("finite", FAIL, f"not read to the end: {error}")
    progress(total, total)
    wrong = [*bad, *(f"{text}: a type whose values are not understood here" for text in unread)]
    return judge("finite", some(wrong) if wrong else "", f"{total:,} bytes read, no NaN, nothing infinite")


def _tied_head(directory: Path, tensors: dict[str, Tensor], shape: ModelShape | None) -> Finding:
    """A model that ties its head to its embedding has the embedding's values in a head that is stored all the same."""
    if shape is None:
        return Finding("tied_head", SKIPPED, "config.json does not say whether the head is tied")
    if not shape.tied:
        return Finding("tied_head", PASS, "not tied; the head has weights of its own")
    if HEAD not in tensors or EMBEDDING not in tensors:
        return Finding("tied_head", PASS, "tied, not stored a second time")
    head, embedding = tensors[HEAD], tensors[EMBEDDING]
    if head.shape != embedding.shape:
        return Finding(
            "tied_head", FAIL, f"tied, but {HEAD} is {list(head.shape)}, {EMBEDDING} {list(embedding.shape)}"
        )
    if not (is_readable(head) and is_readable(embedding)):
        return Finding("tied_head", SKIPPED, f"{head.dtype} and {embedding.dtype} are not understood here")
    apart = distance((directory, head), (directory, embedding))
    wrong = "" if apart.within(0.0) else (
        f"config.json ties the head to the embedding, but {HEAD} is untied and differs from {EMBEDDING} by "
        f"{apart.max_abs:.3g} at most: Transformers would drop it"
    )  # fmt: skip
    return judge("tied_head", wrong, "tied, stored a second time and equal")


def _reload(directory: Path, before: list[Finding]) -> Finding:
    """Transformers' own opinion, asked for only where nothing is known to be wrong."""
    if failed := [finding.name for finding in before if finding.verdict == FAIL]:
        return Finding("reload", SKIPPED, f"not tried: {', '.join(failed)} failed")
    missing = [name for name in ("transformers", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        return Finding("reload", SKIPPED, f"not tried: {' and '.join(missing)} not installed (pip install '.[train]')")
    from harness.reload import head_lost, reload_report

    report = reload_report(directory)
    if not report.get("loaded"):
        return Finding("reload", SKIPPED if report.get("loaded") is None else FAIL, str(report.get("error")))
    counts = report["counts"]
    evidence = (
        f"{' / '.join(str(counts[kind]) for kind in ('missing', 'unexpected', 'mismatched'))} missing / unexpected / "
        f"mismatched keys, {report['parameters']:,} parameters, in {report['seconds']:.0f} s"
    )
    names = some(name for kind in ("missing", "unexpected", "mismatched") for name in report[kind])
    lost = "; the head is not tied after loading" if head_lost(report) else ""
    wrong = f"{evidence}: {names}{lost}" if any(counts.values()) or lost else ""
    return judge("reload", wrong, f"AutoModelForCausalLM: {evidence}")
