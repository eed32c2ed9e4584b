# ruff: noqa: E501
"""Events: one table entry per thing that torchtitan's lines say besides a step.

To teach the reader a new line: add one ``Shape`` here (or in ``failures``, if it tells how a run went wrong), its kind to
``KINDS`` if that is new, and the line with its expected event to ``tests/golden``. ``needle`` is looked for in every line at
full speed, so it should be long enough to be rare and must not begin with a blank; ``pattern`` is then looked for in the
line's message, without prefix and colours. Named groups become the keys of ``data``, converted as ``CONVERT`` says.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

INT = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
FLOAT = r"\d+(?:\.\d+)?"


def _integer(text: str) -> int:
    return int(text.replace(",", ""))


def _names(text: str) -> list[str]:
    """``'dp_shard', 'tp'`` as a list of names."""
    return [name.strip(" '\"") for name in text.split(",") if name.strip(" '\"")]


CONVERT: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(
        (
            "step", "parameters", "dense", "sparse", "vision", "active", "count", "exitcode", "pid", "local_rank", "limit",
            "local_batch", "global_batch", "accumulation", "sequence_length", "total_steps", "warmup", "microbatches",
            "stages", "rank_named", "signal", "batches", "epoch", "seed", "tokens_per_rank", "tokens_per_step",
            "context_length", "forward", "backward", "child_rank", "stage", "code_point",
        ),
        _integer,
    ),
    **dict.fromkeys(("seconds", "flops", "gib", "percent", "loss"), float),
    "names": _names,
    "sizes": lambda text: [int(size) for size in text.split(",") if size.strip()],
}  # fmt: skip


@dataclass(eq=False)
class Shape:
    """One line shape: the event's kind, the needle, the expression, and what ``data`` holds in any case."""

    kind: str
    needle: str
    pattern: str
    constant: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """Compiled on first use, so that starting up costs nothing for lines that do not come."""
        return re.compile(self.pattern)

    @cached_property
    def fields(self) -> list[tuple[str, Callable[[str], Any]]]:
        """The named groups and how to convert them."""
        return [(name, CONVERT.get(name, str.strip)) for name in self.expression.groupindex]

    def read(self, message: str) -> dict[str, Any] | None:
        """``data`` of the event in ``message``, or ``None`` if the line only looks like one."""
        match = self.expression.search(message)
        if match is None:
            return None
        data = self.constant.copy()
        for name, convert in self.fields:
            value = match[name]
            if value is not None:
                try:
                    data[name] = convert(value)
                except ValueError:
                    return None
        return data


S = Shape

# fmt: off
TITAN: tuple[Shape, ...] = (
    # -- who runs
    S("version", "torchtitan version:", r"torchtitan version: (?P<version>\S+)"),
    S("job", "Starting job:", r"Starting job: (?P<description>.+)"),
    S("config_saved", "Saved job configs to", r"Saved job configs to (?P<path>\S+)"),
    S("structured_log", "Structured logging ->", r"Structured logging -> JSONL: (?P<path>\S+)"),
    S("tensorboard", "TensorBoard logging enabled", r"TensorBoard logging enabled\. Logs will be saved at (?P<path>\S+)"),
    S("tensorboard", "ensorboard logs will be saved", r"Metrics logging active\. Tensorboard logs will be saved at (?P<path>\S+?)\.?$"),
    S("deterministic", "Deterministic ", r"Deterministic training (?:on\. Using seed: (?P<seed>\d+)|enabled|on\b)"),
    S("deterministic", "Deterministic ", r"Deterministic algorithm enabled"),
    S("environment", "verrid", r"ENV\[(?P<name>\w+)\] = (?P<before>.*?) will be overridden to (?P<after>.*?) based on job config"),
    # -- model and device
    S("model_build", "Building ", r"^Building (?!device mesh)(?P<model>[\w.-]+) (?P<flavor>[\w.-]+?) ?(?:with .*)?$"),
    S("model_size", "total parameters", rf"(?:Model )?(?P<model>\S+) (?P<flavor>\S+) size: (?P<parameters>{INT}) total parameters"),
    S("parameter_count", "Total parameter count:", rf"Total parameter count: dense (?P<dense>{INT}), sparse (?P<sparse>{INT})(?:, vision (?P<vision>{INT}))?, active (?P<active>{INT})"),
    S("peak_flops", "Peak FLOPS used for", r"Peak FLOPS used for computing MFU: (?P<flops>\d+(?:\.\d+)?(?:e[+-]?\d+)?)"),
    S("peak_flops_fallback", "Peak flops undefined for", r"Peak flops undefined for(?: TPU)?: (?P<device>.*), fallback to (?P<fallback>\S+)"),
    S("peak_flops_fallback", "Unknown neuron device", r"Unknown neuron device: (?P<device>.*), fallback to (?P<fallback>\S+)"),
    S("device_capacity", "capacity", rf"(?P<device_type>[A-Z]+|<built-in method upper of str object at \w+>) capacity: (?P<device>.*?) ?(?:\(\d+\) )?with ?(?P<gib>{FLOAT})GiB"),
    S("device_capacity", "capacity", rf"GPU memory usage: (?P<device>.*) \(\d+\): (?P<gib>{FLOAT}) GiB capacity", {"device_type": "GPU"}),
    S("model_memory", "memory usage for model:", rf"(?P<device_type>[A-Z]+|<built-in .*>) memory usage for model: (?P<gib>-?{FLOAT})GiB\((?P<percent>-?{FLOAT}|nan|inf)%\)"),
    # -- how it is split
    S("mesh", "Building ", r"Building device mesh with parallelism: (?P<parallelism>[\w=, -]+)"),
    S("mesh", "Building ", r"Building \d-D device mesh with [\[(](?P<names>[^\])]*)[\])], \[(?P<sizes>[\d, ]+)\]"),
    S("mesh_active", "active dimensions:", r"Successfully created meshes with active dimensions: \[(?P<names>[^\]]*)\]"),
    S("pipeline", "Using pipeline schedule", r"Using pipeline schedule (?P<schedule>\S+) with (?P<microbatches>\d+) (?:microbatches )?and (?P<stages>\d+) stages"),
    S("pipeline_stage", "is building stage_idx", r"PP rank \d+ is building stage_idx (?P<stage>\d+) with (?P<modules>.*)"),
    S("applied", "Applied ", r"(?:^|[\s:\]-])Applied (?P<what>(?:FSDP|HSDP|DDP|replicate|fully_shard|parallelisms|Sequence|(?:Float8 )?(?:tensorwise )?(?:Async )?Tensor|Context|CPU Off|\w+ activation|Data Par|Expert).*?)(?: to the .*)?$"),
    S("applied", "Async TP is enabled", r"(?P<what>Async TP) is enabled"),
    # -- swaps and conversions
    S("override", "verrid", r"\[Override\] (?P<name>[^:]+): (?P<module>\S+) (?P<before>\S+) -> (?P<after>\S+)(?: with (?P<options>.*))?"),
    S("override", "verrid", r"Applying overrides: (?P<options>\{.*\})", {"name": "config"}),
    S("override", "verrid", r"Applying model_overrides: (?P<options>\{.*\})", {"name": "model"}),
    S("overrides_applied", "verrid", r"Applied (?P<count>\d+) override\(s\)"),
    S("overrides_none", "produced no replacements", r"override\.imports=(?P<imports>.*) produced no replacements"),
    S("converter", "Swapped ", r"Swapped to (?P<what>.*?) ?layers?\b(?: with (?P<options>.*))?"),
    S("converter", "Swapped ", r"Swapped (?P<module>\S+?)?\.weight to (?P<what>\S+)"),
    S("converter", "training active", r"(?P<what>Float8|MX\w*|NVFP4|LoRA)(?: tensorwise scaled)? training active(?: with (?P<options>.*))?"),
    S("converter", "Converted ", r"Converted (?P<what>(?:Linear|GroupedExperts|layers|\d+)\b.*)"),
    S("converter_failed", "Failed to swap to", r"Failed to swap to (?P<what>\S+) because (?P<reason>.*)"),
    S("kernel_fallback", "NKI-accelerated", r"(?P<message>(?:Failed to use )?NKI-accelerated \S+ kernel.*)"),
    S("kernel_fallback", "falling back to", r"^(?=.*(?:kernel|[Tt]riton|NKI))(?P<message>.*falling back to.*)"),
    S("kernel_calls", "[pilot] kernel ", r"\[pilot\] kernel (?P<name>\S+) backend=(?P<backend>\S+) forward=(?P<forward>\d+) backward=(?P<backward>\d+)"),
    S("pilot_check", "[pilot] check ", r"\[pilot\] check (?P<name>\S+)(?: (?P<values>.*))?"),
    # -- compiling
    S("compile", "Compil", r"Compiling (?P<what>model|each \w+|the loss function)(?: \S+)? with torch\.compile"),
    S("compile", "Compil", r"Compiled (?P<what>each \w+) with torch\.compile"),
    S("compile", "regional_inductor is", r"(?P<what>regional_inductor) is enabled"),
    S("cuda_graph", "CUDA graph", r"(?P<message>Recorded CUDA graph|CUDA graph capture is only supported on .*)"),
    S("recompile_limit", "torch._dynamo hit config.", r"torch\._dynamo hit config\.(?P<name>\w+_limit) \((?P<limit>\d+)\)"),
    S("neff_cached", "Using a cached neff", r"Using a cached neff at (?P<path>\S+)"),
    S("neff_compiled", "Compil", r"Compilation Successfully Completed(?: for (?P<path>\S+))?"),
    S("neff_compiled", "Compil", r"Compiler status PASS"),
    # -- start
    S("trainer", "Trainer is initialized with", rf"Trainer is initialized with local batch size (?P<local_batch>{INT}), global batch size (?P<global_batch>{INT})(?:, gradient accumulation steps (?P<accumulation>{INT}))?, sequence length (?P<sequence_length>{INT})(?:, total steps (?P<total_steps>{INT}))?(?: \(warmup (?P<warmup>{INT})\))?"),
    S("trainer", "Trainer is initialized with", rf"Trainer is initialized with (?P<tokens_per_rank>{INT}) tokens per DP rank, (?P<tokens_per_step>{INT}) tokens per train step(?:, gradient accumulation steps (?P<accumulation>{INT}))?(?:.*?maximum context length (?P<context_length>{INT}))?(?:.*?total steps (?P<total_steps>{INT}))?(?: \(warmup (?P<warmup>{INT})\))?"),
    S("training_start", "Training starts at step", rf"Training starts at step (?P<step>{INT})(?:.*?local batch size:? (?P<local_batch>{INT}))?(?:.*?global batch size (?P<global_batch>{INT}))?(?:.*?sequence length:? (?P<sequence_length>{INT}))?(?:.*?total steps:? (?P<total_steps>{INT}))?(?: ?\((?:warmup )?(?P<warmup>{INT})\))?"),
    S("training_start", "Training starts at step", r"Training starts at step \{self\.step \+ 1\}"),  # so printed for two days
    S("optimizer", "Optimizer ", r"Optimizer (?P<name>\w+) \(model_part=\d+\): (?P<count>\d+) params"),
    S("warmup_adjusted", "Adjusting warmup steps", rf"Warmup steps \((?P<warmup>{INT})\) exceed total (?:training )?steps \((?P<total_steps>{INT})\)"),
    # -- checkpoints
    S("checkpoint_active", "heckpoint", r"Checkpointing active\. Checkpoints will be loaded from and saved to (?P<path>.+)"),
    S("checkpoint_load", "heckpoint", r"Loading the checkpoint (?:at step (?P<step>\d+)|from (?P<path>\S+?))\.?$"),
    S("checkpoint_load", "heckpoint", r"Loading a checkpoint"),
    S("checkpoint_load", "HF safetensors from", r"[Ll]oading (?:from )?HF safetensors from (?P<option>\S+?): (?P<path>\S+)"),
    S("checkpoint_loaded", "heckpoint", rf"Finished loading the checkpoint in (?P<seconds>{FLOAT}) ?s"),
    S("checkpoint_none", "heckpoint", r"No checkpoint was provided, this is a fresh start"),
    S("checkpoint_save", "heckpoint", rf"[Ss]aving a (?:(?P<what>full|model weights only|model only) )?checkpoint(?: in (?!step|last)(?P<dtype>\S+))?(?: (?:at|in)(?: last)? step,?(?: step)? (?P<step>{INT}))?"),
    S("checkpoint_save", "heckpoint", r"^[Ss]aving the checkpoint(?: \(or staging|\.)"),
    S("checkpoint_stage", "heckpoint", r"Staging the checkpoint"),
    S("checkpoint_saved", "heckpoint", rf"Finished saving the checkpoint(?: \(or staging if async is enabled\))? ?in (?P<seconds>{FLOAT}) seconds"),
    S("checkpoint_saved", "heckpoint", rf"Last step checkpoint completed in (?P<seconds>{FLOAT})s", {"what": "last step"}),
    S("checkpoint_staged", "heckpoint", rf"Finished staging the checkpoint in (?P<seconds>{FLOAT}) seconds"),
    S("checkpoint_staged", "heckpoint", rf"Staging ft checkpoint took (?P<seconds>{FLOAT}) secs", {"what": "ft"}),
    S("checkpoint_seed", "heckpoint", r"Created seed checkpoint"),
    S("checkpoint_deleted", "heckpoint", rf"Checkpointer deleted (?P<path>\S+) in (?P<seconds>{FLOAT}) seconds"),
    S("checkpoint_deleted", "heckpoint", r"Deleting old checkpoint (?P<path>\S+)"),
    # -- while it runs
    S("gc", "[GC] ", rf"\[GC\] (?P<reason>.*?)\.?(?: took)? (?P<seconds>{FLOAT}) seconds"),
    S("dataset_reloop", "being re-looped", r"[Dd]ataset '?(?P<dataset>[^\s']+)'? is being re-looped(?:.*\(epoch (?P<epoch>\d+)\))?"),
    S("dataset_end", "has run out of data", r"[Dd]ataset '?(?P<dataset>[^\s']+)'? has run out of data"),
    S("dataset_end", "Ran out of data", r"Ran out of data; last step was canceled"),
    S("alloc_retries", "memory allocation retries", r"(?P<count>\d+) (?P<device_type>[A-Z]+|<built-in .*>) memory allocation retries"),
    S("oom_warning", "OOM errors thrown", r"(?P<count>\d+) (?P<device_type>[A-Z]+|<built-in .*>) OOM errors thrown"),
    S("profile", "Profiling active", r"(?P<what>Profiling active)\.\s+Traces will be saved at (?P<path>\S+)"),
    S("profile", "umping ", r"(?P<what>Dumping|Finished dumping) (?P<output>(?:profiler )?traces|memory snapshot) (?:at step (?P<step>\d+)|in (?P<seconds>[\d.]+) seconds)"),
    S("profile", "Memory profiler active", r"(?P<what>Memory profiler active)\. Snapshot will be saved at (?P<path>\S+)"),
    S("metrics_rank", "oss is not visible", r"Pipeline Parallel loss is not visible\. Please add rank (?P<rank_named>\d+)"),
    S("timeout_set", "adjusting timeout for all", r"Synchronizing and adjusting timeout for all ProcessGroups to (?P<timeout>[\d:]+)"),
    S("validation", "Validation completed", r"Validation completed\. Average loss: (?P<loss>\d+\.\d+|nan|inf) over (?P<batches>\d+) batches"),
    S("loss_without_step", "current loss: ", r"^current loss: (?:tensor\()?(?P<loss>\d+\.\d+|nan|inf)"),
    # -- the end
    S("training_completed", "Training completed", r"Training completed\.?\s*$"),
    S("process_group_destroyed", "Process group destroyed", r"Process group destroyed"),
)
# fmt: on
