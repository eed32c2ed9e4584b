"""What a training starts from, settled before anything is started: random weights, a directory, the hub, or an old
checkpoint; and what the model takes from the weights' own config.json."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import flags, hub
from harness.model_config import CONFIG, Difference, adopt, differences, read_config, stored_dtype
from harness.old_checkpoints import checkpoint_folder, step_to_resume
from harness.progress import printable
from harness.schema import InitConfig, PilotConfig
from harness.shapes import ModelShape
from harness.weights import key_problems, read_tensors

SHOWN = 4
"""Differences that an error names before it counts the rest."""


@dataclass(frozen=True, kw_only=True)
class Initial:
    """Where the first weights come from."""

    mode: str = "random"
    seed: int = 1
    directory: Path | None = None
    """Absolute; None for random weights, and for a model of the hub that is not on this machine yet (dry run)."""
    repository: str = ""
    """Hub id, where one was named."""
    commit: str = ""
    """What the hub id stood for."""
    adopted: tuple[Difference, ...] = ()
    """Where the model follows config.json instead of the path."""
    dtype: str | None = None
    """Of the weights, as config.json names it."""
    resumed_step: int | None = None
    """Step of the old checkpoint that training goes on from."""
    resumed_from: Path | None = None
    """Folder of that checkpoint."""

    @property
    def place(self) -> str | None:
        """What torchtitan loads; in a dry run the hub id where the weights are not on this machine yet."""
        return str(self.directory or self.repository) if self.mode == "pretrained" else None

    @property
    def changes(self) -> str:
        """What was adopted, with both values; empty if nothing."""
        return ", ".join(f"{item.key} {item.file} (path: {item.model})" for item in self.adopted)

    def describe(self) -> str:
        """One line for a person."""
        if self.resumed_step is not None:
            return f"resumed from step {self.resumed_step} in {self.resumed_from}"
        if self.mode == "random":
            return f"random weights from seed {self.seed}: nothing is loaded"
        at = f" at {self.commit[:12]}" if self.commit else ""
        where = f"{self.repository}{at}" if self.repository else str(self.directory)
        changes = f"; adopted from its {CONFIG}: {self.changes}" if self.adopted else ""
        return f"weights from {printable(where)}{changes}"

    def record(self) -> dict[str, Any]:
        """For the manifest."""
        config = self.directory / CONFIG if self.directory else None
        return {
            "mode": self.mode,
            "from": self.describe(),
            "directory": str(self.directory) if self.directory else None,
            "repository": self.repository or None,
            "commit": self.commit or None,
            "config_sha256": hashlib.sha256(config.read_bytes()).hexdigest() if config and config.is_file() else None,
            "dtype": self.dtype,
            "adopted": {item.key: {"file": item.file, "path": item.model} for item in self.adopted},
            "resumed_step": self.resumed_step,
            "resumed_from": str(self.resumed_from) if self.resumed_from else None,
        }


def settle(config: PilotConfig, shape: ModelShape, *, requeued: bool = False) -> tuple[Initial, ModelShape, InitConfig]:
    """Find the weights, compare their config.json with ``shape``, and give back what will be built.

    Args:
        requeued: whether this job has run before, so that old checkpoints may be its own: harness.attempts decides.

    Returns:
        what the training starts from; ``shape``, or what became of it where init.adopt_config is on; and init with
        what the harness writes into it.

    Raises:
        ValueError: contradictory settings, weights that are not there or of another model, an old checkpoint.
    """
    init = config.init
    _check_settings(config)
    dump = Path(config.runs) / config.experiment_name / "RUN_ID" / "dump"
    step = None
    if config.resume or not requeued:
        step = step_to_resume(config.train.flags, dump, resume=config.resume)
    if step is not None and step >= config.train.steps:
        raise ValueError(
            f"resume=true from step {step}, but train.steps={config.train.steps}: nothing is left to train"
        )
    initial = Initial(mode=init.mode, seed=config.train.seed, resumed_step=step)
    if step is not None:
        initial = replace(initial, resumed_from=checkpoint_folder(config.train.flags, dump))
    if init.mode == "pretrained":
        initial, shape = _settle_weights(config, shape, initial)
    written = {item.key: item.file for item in initial.adopted}
    return initial, shape, replace(init, adopted=written, resumed_step=step)


def _check_settings(config: PilotConfig) -> None:
    init, options = config.init, config.train.flags
    if init.mode == "random":
        if init.path:
            raise ValueError(
                f"init=random does not load init.path={init.path}: say init=pretrained, or leave the path out"
            )
        if init.adopt_config or init.revision:
            raise ValueError("init=random loads nothing that could be adopted: say init=pretrained init.path=DIR")
        if not config.resume and (given := _loads_weights(options)):
            raise ValueError(
                f"init=random, but train.flags loads weights: {given}\n"
                "  say init=pretrained init.path=DIR instead, which checks them first"
            )
    elif init.mode == "pretrained" and not init.path:
        raise ValueError("init=pretrained needs init.path=, a directory with safetensors and config.json, or a hub id")


def _loads_weights(options: list[str]) -> str:
    """The option that makes torchtitan load weights before the first step; empty if none does."""
    if path := flags.value(options, "checkpoint.initial_load_path"):
        return f"--checkpoint.initial_load_path {printable(path)}"
    return "--checkpoint.initial_load_in_hf" if flags.is_on(options, "checkpoint.initial_load_in_hf") else ""


def _settle_weights(config: PilotConfig, shape: ModelShape, initial: Initial) -> tuple[Initial, ModelShape]:
    init = config.init
    initial = locate(init, initial, whole=False, download=not config.dry_run)
    if initial.directory is None:
        return initial, shape
    values = read_config(initial.directory)
    wrong, taken = differences(values, shape), []
    if init.adopt_config:
        adopted, taken = adopt(shape, wrong)
        wrong = [item for item in wrong if item not in taken]
    if wrong:
        raise ValueError(_refusal(config, shape, wrong))
    if taken:
        shape = adopted
    return replace(initial, adopted=tuple(taken), dtype=stored_dtype(values)), shape


def locate(init: InitConfig, initial: Initial, *, whole: bool, download: bool) -> Initial:
    """The directory of ``init.path``: itself, or that of a hub id.

    Args:
        whole: a hub id with all of its weights; else config.json is enough.
        download: what the local cache lacks; else the directory stays None.

    Raises:
        ValueError: neither a directory nor a model that can be had.
    """
    assert init.path
    place = Path(init.path)
    if place.is_dir():
        if init.revision:
            raise ValueError(f"init.revision={init.revision} is for hub ids, but init.path={init.path} is a directory")
        return replace(initial, directory=place.resolve())
    if place.is_file():
        raise ValueError(f"init.path={printable(init.path)} is a file: name the directory that it lies in")
    if not hub.is_hub_id(init.path):
        raise ValueError(f"init.path={printable(init.path)}: no such directory, and no hub id (organisation/name)")
    found = hub.find(init.path, init.revision, whole=whole, download=download)
    return replace(initial, directory=found, repository=init.path, commit=hub.commit_of(found) if found else "")


def refuse_wrong_keys(init: InitConfig, initial: Initial, shape: ModelShape, path: str) -> None:
    """The headers of all weights against the model that will be built, after a hub id's weights were downloaded.

    Raises:
        ValueError: missing, extra or mis-shaped keys, or files that cannot be read.
    """
    if initial.mode == "random":
        return
    found = locate(init, initial, whole=True, download=True)
    assert found.directory is not None
    if found.directory != initial.directory:
        raise ValueError(f"{initial.repository} has changed while it was downloaded: start again")
    if problems := key_problems(read_tensors(found.directory), shape):
        raise ValueError(f"init.path={init.path} does not fit path={path}: {'; '.join(problems)}")


def _refusal(config: PilotConfig, shape: ModelShape, wrong: list[Difference]) -> str:
    """What does not fit, and in a second line what can be done about it."""
    more = f" (and {len(wrong) - SHOWN} more)" if len(wrong) > SHOWN else ""
    listed = "; ".join(map(str, wrong[:SHOWN])) + more
    return f"init.path={config.init.path} does not fit path={config.path.name}: {listed}\n  {_advice(config, wrong)}"


def _advice(config: PilotConfig, wrong: Iterable[Difference]) -> str:
    wrong = list(wrong)
    full = config.path.full_shape()
    widths = [item for item in wrong if item.field in ("hidden", "vocab")]
    if config.rehearsal and widths and all(item.file == getattr(full, str(item.field)) for item in widths):
        return (
            "they are weights of the full model, and this is a rehearsal at narrow widths: train them on an "
            "accelerator (scale.rehearsal=false)"
        )
    if fixed := [item.key for item in wrong if item.field is None]:
        return f"{', '.join(fixed)} cannot be adopted: choose weights of the kind that path={config.path.name} builds"
    if config.init.adopt_config:
        return "these values are missing or impossible and cannot be adopted: mend config.json"
    return "weights of another model train on without a word; to build the model that config.json describes: " \
           "init.adopt_config=true"  # fmt: skip
