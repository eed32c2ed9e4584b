"""What a choice of kernels means for a run: what is swapped, how often it must be called, how it is checked (no torch).

The choices are ``baseline`` (the library's own modules), ``nki_rope``, ``nki_moe`` and ``nki_all``. In torchtitan's own
models a swap is an override; in the Transformers backend ``kernels.transformers_swap`` replaces the RoPE function.
Either way one line ``[Override] kernels.swaps.nki_rope: FQN A -> B`` is logged per swapped module.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kernels.backend import BACKENDS, Calls
from kernels.check.shapes import ExpertShape, RopeShape

CHOICES: dict[str, tuple[str, ...]] = {
    "baseline": (),
    "nki_rope": ("nki_rope",),
    "nki_moe": ("nki_moe",),
    "nki_all": ("nki_rope", "nki_moe"),
}
"""Kernels of each choice."""
KERNELS_ENV, LAYERS_ENV = "PILOT_KERNELS", "PILOT_KERNEL_LAYERS"
BACKEND_ENV, LNC_ENV = "PILOT_KERNEL_BACKEND", "PILOT_KERNEL_LNC"
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, kw_only=True)
class SwapPlan:
    """The swaps of one run and what proves them."""

    kernels: tuple[str, ...]
    layers: tuple[int, ...]
    """Numbers of the layers whose modules are swapped."""
    override_imports: tuple[str, ...]
    """Targets of torchtitan's ``--override.imports``; none for the Transformers backend."""
    environment: Mapping[str, str]
    """What every rank needs in its environment."""

    @property
    def expected_swaps(self) -> dict[str, int]:
        """``[Override]`` lines that one rank must log, by kernel: one per selected layer."""
        return {kernel: len(self.layers) for kernel in self.kernels}

    def expected_calls(self, *, steps: int, micro_batches: int = 1, recompute: str = "none") -> dict[str, Calls]:
        """Calls that one rank must have made in the whole training, by kernel."""
        calls = expected_calls(len(self.layers), steps, micro_batches, recompute=recompute)
        return dict.fromkeys(self.kernels, calls)


def plan_swaps(
    choice: str,
    *,
    num_layers: int,
    layers: str = "*",
    transformers: bool = False,
    has_experts: bool = False,
    backend: str = "auto",
    lnc: int | None = None,
) -> SwapPlan:
    """What has to be done for ``kernel=choice``.

    Args:
        num_layers: of the model.
        layers: which ones to swap (``select_layers``).
        transformers: whether torchtitan's Transformers backend builds the model.
        has_experts: whether the model's layers are mixtures of experts.

    Raises:
        ValueError: no such choice, kernels that the model has no place for, or a pattern that selects nothing.
    """
    if choice not in CHOICES:
        raise ValueError(f"kernel={choice}: one of {', '.join(CHOICES)} was expected")
    kernels = CHOICES[choice]
    if "nki_moe" in kernels and (transformers or not has_experts):
        where = "the Transformers backend" if transformers else "this model, which has no experts"
        raise ValueError(f"kernel={choice}: nki_moe has no place in {where}; use kernel=nki_rope or path=moe_nki")
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"kernel.backend={backend}: one of auto, {', '.join(BACKENDS)} was expected")
    if not kernels:
        return SwapPlan(kernels=(), layers=(), override_imports=(), environment={})
    selected = select_layers(layers, num_layers)
    environment = {KERNELS_ENV: ",".join(kernels), LAYERS_ENV: ",".join(map(str, selected)), BACKEND_ENV: backend}
    if lnc is not None:
        environment[LNC_ENV] = str(lnc)
    return SwapPlan(
        kernels=kernels,
        layers=selected,
        override_imports=() if transformers else tuple(f"kernels.swaps.{kernel}" for kernel in kernels),
        environment=environment,
    )


def select_layers(pattern: str, num_layers: int) -> tuple[int, ...]:
    """Layer numbers that a pattern selects: ``*``, ``0``, ``1[0-9]``, ``4-7``, or several of them with commas.

    Raises:
        ValueError: a part that selects no layer.
    """
    selected: set[int] = set()
    for part in (piece.strip() for piece in pattern.split(",")):
        span = re.fullmatch(r"(\d+)-(\d+)", part)
        if span:
            matches = {n for n in range(num_layers) if int(span[1]) <= n <= int(span[2])}
        else:
            matches = {n for n in range(num_layers) if fnmatchcase(str(n), part)}
        if not matches:
            raise ValueError(
                f"kernel.layers={pattern!r}: {part!r} selects none of the layers 0 to {num_layers - 1}; "
                "write e.g. '*', '0', '1[0-9]' or '4-7'"
            )
        selected |= matches
    return tuple(sorted(selected))


def expected_calls(num_layers: int, steps: int, micro_batches: int = 1, *, recompute: str = "none") -> Calls:
    """Calls of one kernel on one rank: once per swapped layer, step and micro batch, and again where recomputed.

    Args:
        recompute: activation checkpointing; selective and full both run the forward of our ops a second time, since
            torchtitan's list of results worth keeping does not name them.

    Raises:
        ValueError: a recomputation that is not known.
    """
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute={recompute}: one of {', '.join(RECOMPUTE)} was expected")
    once = num_layers * steps * micro_batches
    return Calls(forward=once if recompute == "none" else 2 * once, backward=once)


def name_clash() -> str | None:
    """What is wrong if Hugging Face's package of the same name is installed beside this one; None if it is not.

    Transformers finds its distribution, imports ``kernels``, gets ours, and fails with an ImportError of its own.
    """
    try:
        version = importlib.metadata.version("kernels")
    except importlib.metadata.PackageNotFoundError:
        return None
    return (
        f"Hugging Face's package kernels {version} is installed; Transformers would import this project's package of "
        "that name in its place and fail: pip uninstall kernels"
    )


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """Sizes of one layer as the kernels see them on one rank."""

    batch: int
    """Sequences per micro batch."""
    seq: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    """float32 or bfloat16: of activations."""
    dim: int = 0
    ffn: int = 0
    """Width of one expert."""
    experts: int = 0
    top_k: int = 0


def gate_arguments(plan: SwapPlan, layer: LayerShape, *, lnc: int) -> list[list[str]]:
    """Arguments after ``python -m kernels`` that check each kernel of a run on its own shapes.

    Experts are checked in bfloat16 whatever the activations are: torchtitan computes them in nothing else.
    """
    commands = []
    for kernel in plan.kernels:
        if kernel == "nki_rope":
            shape, dtype = _rope_shape(layer), layer.dtype
        else:
            shape, dtype = _expert_shape(layer), "bfloat16"
        options = ["--shape", str(shape), "--dtype", dtype, "--lnc", str(lnc), "--json"]
        commands.append(["check", kernel, *options])
    return commands


def _rope_shape(layer: LayerShape) -> RopeShape:
    return RopeShape(
        batch=layer.batch, heads=layer.heads, kv_heads=layer.kv_heads, seq=layer.seq, head_dim=layer.head_dim
    )


def _expert_shape(layer: LayerShape) -> ExpertShape:
    tokens = layer.batch * layer.seq
    return ExpertShape(tokens=tokens, top_k=layer.top_k, dim=layer.dim, ffn=layer.ffn, experts=layer.experts)
