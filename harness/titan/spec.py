"""What the launcher tells the training process: one frozen record, as a file and as visible arguments (no torch).

The launcher writes the record to the run directory and names it in the environment variable ``PILOT_SPEC``; the
configuration functions of ``harness.titan.config_registry`` build from it. Whatever torchtitan has a flag for is
repeated on the command line, so that the command shown to a person is the command that ran.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.shapes import ModelShape

SPEC_ENV = "PILOT_SPEC"
DEVICES = ("cpu", "cuda", "neuron")
DTYPES = ("float32", "bfloat16")
EXPORT_DTYPES = ("float32", "bfloat16", "float16")
RECOMPUTE = ("auto", "none", "selective", "full")
SPMD_BACKENDS = ("auto", "partial_dtensor", "spmd_types", "full_dtensor")


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """Text and tokenizer, as absolute files (harness.titan.assets prepares them)."""

    name: str = "c4_test"
    """Name under which the data set is registered with torchtitan: pydoc, c4_test or local."""
    files: tuple[str, ...] = ()
    """JSON lines, read in this order; empty: the library's own default of that name."""
    text_field: str = "text"
    tokenizer: str = "./tests/assets/tokenizer"
    """Directory with tokenizer.json; torchtitan's ``hf_assets_path``."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSpec:
    """What is loaded before the first step and saved after the last one."""

    initial_load_path: str | None = None
    """Absolute directory of Hugging Face safetensors to start from; None: random weights."""
    export_last: bool = False
    """Save the model as Hugging Face safetensors after the last step."""
    export_dtype: str = "float32"
    interval: int | None = None
    """Save the full training state every so many steps; None: never."""
    folder: str = "checkpoint"
    """Relative to the dump folder."""
    evidence: str | None = None
    """Absolute directory for what Transformers is compared with: the first batch, the RoPE table, the last logits."""
    keep_initial: bool = False
    """Save the weights before the first step there too."""

    @property
    def enable(self) -> bool:
        return self.initial_load_path is not None or self.saves or self.keep_initial

    @property
    def saves(self) -> bool:
        return self.export_last or self.interval is not None


@dataclass(frozen=True, kw_only=True)
class TitanSpec:
    """One training, complete: nothing that changes its result is left to the environment."""

    path: str
    """Name of the path; also of its configuration function."""
    shape: ModelShape
    """What to build: the path's full scale, or its rehearsal's narrower widths."""
    seq_len: int
    local_batch_size: int
    """Sequences per data-parallel rank and micro step."""
    global_batch_size: int
    """Sequences per optimizer step over all ranks."""
    steps: int
    ranks: int
    """Processes, all of them data-parallel FSDP shards."""
    device: str
    learning_rate: float
    warmup_steps: int
    seed: int = 1
    deterministic: bool = False
    dtype: str = "float32"
    """Type in which parameters, gradients and optimizer states are kept."""
    mixed_precision_param: str = "bfloat16"
    """Type of the parameters in forward and backward; reductions stay float32."""
    recompute: str = "auto"
    """Activation recomputation in backward: none, selective (per operation) or full (per block); auto: selective on an
    accelerator, none on CPU."""
    document_mask: bool = False
    """False: plain causal attention and sequential positions without a gather, the same on every path, so that kernel
    arms are comparable. True: tokens attend within their own document, whose positions start at 0."""
    log_freq: int = 1
    """Steps between two metric lines."""
    compile: bool = False
    compile_backend: str | None = None
    """Backend of torch.compile; None: the library's default."""
    spmd_backend: str = "auto"
    """How torchtitan shards; auto picks what works with the installed torch (see ``resolved_spmd_backend``)."""
    override_imports: tuple[str, ...] = ()
    """Targets of torchtitan's ``--override.imports``: kernel swaps, each ``module.function`` or with ``={json}``."""
    hf_model: str | None = None
    """Directory or hub id whose config.json the Transformers backend builds from; None: one written from ``shape``."""
    data: DataSpec = field(default_factory=DataSpec)
    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec)
    init_timeout_s: int | None = None
    """How long ranks wait for each other up to and including the first step; None: 300 s, torchtitan's default, and an
    hour on Neuron, where that step compiles."""
    train_timeout_s: int = 100
    dump_folder: str = "./outputs"

    def __post_init__(self) -> None:
        """Raises ValueError for values that no training could have; the message names the field."""
        for name in ("seq_len", "local_batch_size", "global_batch_size", "steps", "ranks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1")
        per_step = self.local_batch_size * self.ranks
        if self.global_batch_size % per_step:
            raise ValueError(
                f"global batch {self.global_batch_size} is no multiple of local batch x ranks = "
                f"{self.local_batch_size} x {self.ranks} = {per_step}"
            )
        _one_of("device", self.device, DEVICES)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("mixed_precision_param", self.mixed_precision_param, DTYPES)
        _one_of("recompute", self.recompute, RECOMPUTE)
        _one_of("spmd_backend", self.spmd_backend, SPMD_BACKENDS)
        _one_of("checkpoint.export_dtype", self.checkpoint.export_dtype, EXPORT_DTYPES)
        if self.transformers_backend and self.shape.is_moe and self.checkpoint.saves:
            raise ValueError(
                "torchtitan's Transformers backend saves a mixture of experts under keys that Transformers does not "
                "know (torchtitan 0.3.0): train it with torchtitan's own modeling code, path=moe_nki"
            )

    @property
    def uses_own_kernels(self) -> bool:
        """Whether a swap from this project's kernels package is asked for."""
        return any(target.split("=", 1)[0].split(".", 1)[0] == "kernels" for target in self.override_imports)

    @property
    def transformers_backend(self) -> bool:
        """Whether torchtitan's Transformers backend builds the model: by convention, for paths named hf_*."""
        return self.path.startswith("hf_")

    @property
    def resolved_recompute(self) -> str:
        if self.recompute != "auto":
            return self.recompute
        return "none" if self.device == "cpu" else "selective"

    @property
    def resolved_init_timeout_s(self) -> int:
        if self.init_timeout_s is not None:
            return self.init_timeout_s
        return 3600 if self.device == "neuron" else 300

    def resolved_spmd_backend(self, torch_version: str) -> str:
        """The sharding backend to use with this torch release.

        torchtitan 0.3.0's default, spmd_types, shards over more than one rank only from torch 2.14 on; its Transformers
        backend accepts nothing else (observed with 0.3.0 on torch 2.13.0 and 2.14.1).
        """
        if self.spmd_backend != "auto":
            return self.spmd_backend
        major_minor = tuple(int(part) for part in torch_version.split("+")[0].split(".")[:2])
        if major_minor >= (2, 14) or self.ranks == 1 or self.transformers_backend:
            return "spmd_types"
        return "partial_dtensor"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> TitanSpec:
        """Read ``to_json``'s output; unknown, missing and ill-typed keys are a ValueError that names them."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"the training spec is no JSON: {error}") from error
        nested = {"shape": ModelShape, "data": DataSpec, "checkpoint": CheckpointSpec}
        checked = _checked(cls, values, "")
        for name, kind in nested.items():
            if name in checked:
                checked[name] = kind(**_checked(kind, checked[name], f"{name}."))
        return cls(**checked)

    @classmethod
    def from_environment(cls, path: str) -> TitanSpec | None:
        """The spec that ``PILOT_SPEC`` names, or None where the variable is unset.

        Raises:
            ValueError: the file is not there, is no spec, or is the spec of another path.
        """
        file = os.environ.get(SPEC_ENV)
        if not file:
            return None
        try:
            spec = cls.from_json(Path(file).read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"{SPEC_ENV} names {file}, which cannot be read: {error.strerror}") from error
        if spec.path != path:
            raise ValueError(f"{SPEC_ENV} describes path {spec.path!r}, but --config asks for {path!r}")
        return spec


def titan_arguments(spec: TitanSpec, *, torch_version: str | None = None) -> list[str]:
    """Arguments of ``python -m harness.titan`` for this spec, in the names of torchtitan 0.3.0.

    Args:
        torch_version: release that will train, to show the sharding backend that "auto" means there; None leaves the
            choice to the training process.
    """
    flags: list[tuple[str, object]] = [
        ("module", "harness.titan"),
        ("config", spec.path),
        ("training.steps", spec.steps),
        ("training.seq_len", spec.seq_len),
        ("training.local_batch_size", spec.local_batch_size),
        ("training.global_batch_size", spec.global_batch_size),
        ("training.dtype", spec.dtype),
        ("training.mixed_precision_param", spec.mixed_precision_param),
        ("lr_scheduler.warmup_steps", spec.warmup_steps),
        ("parallelism.data_parallel_shard_degree", spec.ranks),
    ]
    if torch_version is not None:
        flags.append(("parallelism.spmd_backend", spec.resolved_spmd_backend(torch_version)))
    flags += [
        ("comm.init_timeout_seconds", spec.resolved_init_timeout_s),
        ("comm.train_timeout_seconds", spec.train_timeout_s),
        ("metrics.log_freq", spec.log_freq),
        ("debug.seed", spec.seed),
        ("dataloader.dataset", spec.data.name),
        ("hf_assets_path", spec.data.tokenizer),
        ("dump_folder", spec.dump_folder),
    ]
    if spec.transformers_backend and spec.hf_model is not None:
        flags.append(("hf_model", spec.hf_model))
    arguments = [text for name, value in flags for text in (f"--{name}", str(value))]
    if spec.deterministic:
        arguments.append("--debug.deterministic")
    if spec.compile:
        arguments.append("--compile.enable")
        if spec.compile_backend is not None:
            arguments += ["--compile.backend", spec.compile_backend]
    arguments += _checkpoint_arguments(spec.checkpoint)
    if spec.override_imports:
        arguments += ["--override.imports", *spec.override_imports]
    return arguments


def _checkpoint_arguments(checkpoint: CheckpointSpec) -> list[str]:
    if not checkpoint.enable:
        return []
    arguments = ["--checkpoint.enable", "--checkpoint.folder", checkpoint.folder]
    if checkpoint.initial_load_path is not None:
        arguments += ["--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path", checkpoint.initial_load_path]
    if not checkpoint.saves:
        arguments.append("--checkpoint.load_only")  # else the last step is saved, asked for or not
    if checkpoint.export_last:
        arguments += ["--checkpoint.last_save_in_hf", "--checkpoint.export_dtype", checkpoint.export_dtype]
    if checkpoint.interval is not None:
        arguments += ["--checkpoint.interval", str(checkpoint.interval)]
    return arguments


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(choices)}")


def _checked(kind: type, values: Any, prefix: str) -> dict[str, Any]:
    """Keyword arguments for dataclass ``kind`` from parsed JSON: every key known, required and of the right type."""
    if not isinstance(values, dict):
        raise ValueError(f"{prefix.rstrip('.') or 'the training spec'} is {values!r}, expected an object")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    if unknown := sorted(values.keys() - fields.keys()):
        raise ValueError(f"unknown key in the training spec: {', '.join(prefix + name for name in unknown)}")
    required = {
        f.name for f in fields.values() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    if missing := sorted(required - values.keys()):
        raise ValueError(f"missing key in the training spec: {', '.join(prefix + name for name in missing)}")
    return {name: _typed(prefix + name, str(fields[name].type), value) for name, value in values.items()}


def _typed(name: str, annotation: str, value: Any) -> Any:
    """``value`` if it fits the annotation's text (this module's annotations only), tuples made of lists."""
    if annotation.endswith("| None"):
        if value is None:
            return None
        annotation = annotation.removesuffix("| None").strip()
    if annotation == "tuple[str, ...]":
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
    elif annotation == "float":
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    elif annotation in ("int", "str", "bool"):
        if type(value).__name__ == annotation:
            return value
    else:
        return value
    raise ValueError(f"{name} in the training spec is {value!r}, expected {annotation}")
