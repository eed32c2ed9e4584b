"""What no pilot can be run with, each said in one line: what is wrong, what was expected, what to type (no torch)."""

from __future__ import annotations

import re

from harness.mesh import plan_mesh
from harness.schema import PilotConfig

DTYPES = ("bfloat16", "float32")


class ConfigError(ValueError):
    """A configuration that cannot be run; the message says what is wrong, what was expected and what to type."""


def known(value: int | None) -> int:
    """A number that :func:`make_plan` has filled in."""
    assert value is not None
    return value


def check_scale(config: PilotConfig) -> None:
    layers, promised = config.scale.num_layers, config.path.full_shape().num_layers
    if layers is not None and not 1 <= layers <= promised:
        raise ConfigError(f"scale.num_layers={layers}: path={config.path.name} has 1 to {promised} layers")


def check_training(config: PilotConfig) -> None:
    train, ranks = config.train, known(config.platform.num_ranks) * config.platform.num_nodes
    for name in ("steps", "seq_len", "local_batch_size", "global_batch_size", "log_freq"):
        at_least(f"train.{name}", getattr(train, name), 1)
    at_least("train.warmup_steps", train.warmup_steps, 0)
    at_least("train.seed", train.seed, 0)
    if train.learning_rate is None or not 0 < train.learning_rate < float("inf"):
        raise ConfigError(f"train.learning_rate={train.learning_rate}: a positive number was expected")
    one_of("train.dtype", train.dtype, DTYPES)
    try:
        plan_mesh(ranks, train.flags)
    except ValueError as error:
        raise ConfigError(f"train.flags: {error}") from error
    micro = known(train.local_batch_size) * ranks
    if known(train.global_batch_size) % micro:
        raise ConfigError(
            f"train.global_batch_size={train.global_batch_size} is no multiple of {train.local_batch_size} sequences "
            f"x {ranks} ranks: try {nearest_multiples(known(train.global_batch_size), micro)}"
        )
    if config.platform.device == "neuron":
        one_of("platform.lnc", config.platform.lnc, (1, 2))
        tile = 128 * known(config.platform.lnc)
        if known(train.seq_len) % tile:
            raise ConfigError(
                f"train.seq_len={train.seq_len} is no multiple of {tile} (128 x LNC {config.platform.lnc}), which "
                f"Trainium kernels need: try {nearest_multiples(known(train.seq_len), tile)}"
            )


def check_names(config: PilotConfig) -> None:
    if not re.fullmatch(r"[\w.+-]{1,100}", config.experiment_name) or config.experiment_name.startswith("."):
        raise ConfigError(
            f"experiment_name={config.experiment_name!r}: letters, digits and . _ + - were expected, no leading dot"
        )
    one_of("kernel.backend", config.kernel.backend, ("auto", "neuron", "simulator", "reference"))
    one_of("init.mode", config.init.mode, ("random", "pretrained"))
    one_of("launch.on_nonfinite", config.launch.on_nonfinite, ("stop", "warn"))
    at_least("replicate", config.replicate, 0)
    for name in ("grace_s", "stall_s", "compile_stall_s", "join_s", "node_lost_s"):
        at_least(f"launch.{name}", getattr(config.launch, name), 0)


def nearest_multiples(value: int, step: int) -> str:
    """The valid values next to ``value``: "256 or 512"."""
    below = value // step * step
    return f"{below} or {below + step}" if below else str(step)


def at_least(name: str, value: float | None, least: int) -> None:
    if value is None or not value >= least:
        raise ConfigError(f"{name}={value}: at least {least} was expected")


def one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}={value}: one of {', '.join(map(str, allowed))} was expected")
