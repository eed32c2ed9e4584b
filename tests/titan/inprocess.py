"""Complete trainings inside the test process: about half a second each instead of the eight of a torchrun.

``spec_of`` makes the spec of a small rehearsal, ``training`` builds its trainer, ``train`` runs it to the end. The
first use prepares this process for torchtitan on CPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib.metadata
import logging
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from harness.data import DataConfig, resolve
from harness.paths import load_path
from harness.titan.assets import prepare_data, transformers_config
from harness.titan.spec import SPEC_ENV, TitanSpec, titan_arguments

STEP = re.compile(r"step:\s*(\d+)\s+loss:\s*(\S+)\s+grad_norm:\s*(\S+)")


@dataclass
class Trained:
    """What one training logged."""

    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """Messages of the log, in order, without the time stamp."""

    def checks(self) -> dict[str, tuple[str, dict[str, str]]]:
        """Verdict and evidence of every ``[pilot] check`` line, by name."""
        found = {}
        for line in self.lines:
            if line.startswith("[pilot] check "):
                name, verdict, *evidence = line.removeprefix("[pilot] check ").split()
                found[name] = (verdict, dict(item.split("=", 1) for item in evidence))
        return found


def spec_of(name: str, folder: Path, *, num_layers: int | None = 2, ranks: int = 1, **changes: Any) -> TitanSpec:
    """Spec of path ``name`` as the rehearsal runs it, with fewer layers by default; ``folder`` also holds the cache."""
    path = load_path(name)
    rehearsal, shape = path.rehearsal, path.rehearsal_shape(num_layers=num_layers)
    cache = folder / "cache"
    transformers = path.backend == "transformers"
    values: dict[str, Any] = {
        "path": name,
        "shape": shape,
        "seq_len": rehearsal.seq_len,
        "local_batch_size": rehearsal.local_batch_size,
        "global_batch_size": rehearsal.local_batch_size * ranks,
        "steps": 10,
        "ranks": ranks,
        "device": "cpu",
        "learning_rate": rehearsal.learning_rate,
        "warmup_steps": rehearsal.warmup_steps,
        "mixed_precision_param": rehearsal.mixed_precision_param,
        "data": prepare_data(resolve(DataConfig()), cache=cache, vocab=shape.vocab),
        "hf_model": str(transformers_config(shape, cache=cache)) if transformers else None,
        "dump_folder": str(folder / "dump"),
    }
    return TitanSpec(**(values | changes))


def write_spec(spec: TitanSpec, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "spec.json"
    file.write_text(spec.to_json(), encoding="utf-8")
    return file


def arguments_of(spec: TitanSpec) -> list[str]:
    return titan_arguments(spec, torch_version=importlib.metadata.version("torch"))


@contextlib.contextmanager
def training(spec: TitanSpec, *extra: str) -> Iterator[tuple[Any, Trained]]:
    """A built trainer of ``spec`` and its log; everything it left in the process is taken down afterwards."""
    trainer_module = prepare_process()
    import torch
    from torchtitan.config import ConfigManager

    file = write_spec(spec, Path(spec.dump_folder).parent / f"spec-{os.urandom(4).hex()}")
    environment = {
        SPEC_ENV: str(file),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    # the library waits two seconds for other ranks to finish; its module alone gets a clock that does not
    clock = SimpleNamespace(**{**vars(trainer_module.time), "sleep": lambda seconds: None})
    result, trainer = Trained(), None
    with mock.patch.dict(os.environ, environment), mock.patch.object(trainer_module, "time", clock), _logged(result):
        try:
            config = ConfigManager().parse_args([*arguments_of(spec), *extra])
            trainer = config.build()
            yield trainer, result
        finally:
            if trainer is not None:
                trainer.close()
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
            gc.enable()  # torchtitan turns the collector off for the whole process
            del trainer
            gc.collect()


def train(spec: TitanSpec, *extra: str) -> Trained:
    """Train ``spec`` to its end, with further arguments of torchtitan."""
    with training(spec, *extra) as (trainer, result):
        trainer.train()
    return result


def shallow(spec: TitanSpec, **shape_changes: Any) -> TitanSpec:
    """``spec`` with a changed shape."""
    return dataclasses.replace(spec, shape=dataclasses.replace(spec.shape, **shape_changes))


def prepare_process() -> Any:
    """Make torchtitan importable in this process; returns its trainer module."""
    from harness.titan import cpu

    cpu.install()
    import torchtitan.trainer
    from torchtitan.tools.logging import init_logger

    init_logger()
    return torchtitan.trainer


@contextlib.contextmanager
def _logged(result: Trained) -> Iterator[None]:
    handler = logging.Handler(logging.INFO)

    def emit(record: logging.LogRecord) -> None:
        message = record.getMessage()
        result.lines.append(message)
        if match := STEP.search(message):
            result.losses.append(float(match[2]))
            result.grad_norms.append(float(match[3]))

    handler.emit = emit  # type: ignore[method-assign]
    logger = logging.getLogger()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]
