# ruff: noqa: E501  (one entry of the table is one line)
"""Events: one table entry per thing a log can say besides a step.

To teach the reader a new line: add one ``Shape`` here and one line with its expected event to ``tests/golden``. ``needle``
is searched for in every line at full speed, so it should be long enough to be rare; ``pattern`` is then searched for in the
line without its colours. Named groups become the keys of ``data``, converted as ``CONVERT`` says (text where it is silent).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def _float(text: str) -> float:
    return float(text.replace(",", ""))


CONVERT: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(
        (
            "step",
            "parameters",
            "dense",
            "sparse",
            "vision",
            "active",
            "count",
            "exitcode",
            "pid",
            "local_rank",
            "limit",
        ),
        _int,
    ),
    **dict.fromkeys(("local_batch", "global_batch", "accumulation", "sequence_length", "total_steps", "warmup"), _int),
    **dict.fromkeys(("microbatches", "stages", "rank_named", "signal", "batches", "epoch", "seed"), _int),
    **dict.fromkeys(("tokens_per_rank", "tokens_per_step", "context_length", "forward", "backward"), _int),
    **dict.fromkeys(("seconds", "flops", "gib", "percent", "loss"), _float),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """One line shape: its event kind, what to search for, the expression, and keys of ``data`` that are always the same."""

    kind: str
    needle: str
    pattern: str
    constant: dict[str, Any] = field(default_factory=dict)
    compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compiled", re.compile(self.pattern))

    def read(self, text: str) -> dict[str, Any] | None:
        """``data`` of the event in ``text``, or ``None`` if the line only looked like one."""
        match = self.compiled.search(text)
        if match is None:
            return None
        data = dict(self.constant)
        for name, value in match.groupdict().items():
            if value is not None:
                try:
                    data[name] = CONVERT[name](value) if name in CONVERT else value.strip()
                except ValueError:
                    return None
        return data


S = Shape
_N = r"\d[\d,]*"
_F = r"[\d.]+"

SHAPES: tuple[Shape, ...] = (
    # -- who runs -----------------------------------------------------------------------------------------------------
    S("version", "torchtitan version:", r"torchtitan version: (?P<version>\S+)"),
    S("job", "Starting job:", r"Starting job: (?P<description>.+)"),
    S(
        "deterministic",
        "Deterministic ",
        r"Deterministic (?:training (?:on|enabled)|algorithm enabled)(?:.*seed: (?P<seed>\d+))?",
    ),
    # -- model and device ---------------------------------------------------------------------------------------------
    S(
        "model_size",
        " total parameters",
        rf"(?:Model )?(?P<model>\S+) (?P<flavor>\S+) size: (?P<parameters>{_N}) total parameters",
    ),
    S(
        "parameter_count",
        "Total parameter count:",
        rf"Total parameter count: dense (?P<dense>{_N}), sparse (?P<sparse>{_N})(?:, vision (?P<vision>{_N}))?, active (?P<active>{_N})",
    ),
    S("peak_flops", "Peak FLOPS used for", r"Peak FLOPS used for computing MFU: (?P<flops>[\d.]+(?:e[+-]?\d+)?)"),
    S(
        "peak_flops_fallback",
        "Peak flops undefined for",
        r"Peak flops undefined for(?: TPU)?: (?P<device>.*), fallback to (?P<fallback>\S+)",
    ),
    S(
        "peak_flops_fallback",
        "Unknown neuron device",
        r"Unknown neuron device: (?P<device>.*), fallback to (?P<fallback>\S+)",
    ),
    S(
        "device_capacity",
        " capacity: ",
        rf"(?P<device_type>[A-Z]+|<built-in method upper of str object at \w+>) capacity: (?P<device>.*?) ?(?:\(\d+\) )?with ?(?P<gib>{_F})GiB",
    ),
    S(
        "device_capacity",
        "GiB capacity, ",
        rf"GPU memory usage: (?P<device>.*) \(\d+\): (?P<gib>{_F}) GiB capacity",
        {"device_type": "GPU"},
    ),
    S(
        "model_memory",
        " memory usage for model:",
        rf"(?P<device_type>\S+|<built-in .*>) memory usage for model: (?P<gib>-?{_F})GiB\((?P<percent>-?{_F}|nan|inf)%\)",
    ),
    # -- how it is split ----------------------------------------------------------------------------------------------
    S("mesh", "Building device mesh with", r"Building device mesh with parallelism: (?P<parallelism>[\w=, -]+)"),
    S(
        "mesh",
        "-D device mesh with",
        r"Building (?P<dimensions>\d)-D device mesh with [\[(](?P<names>[^\])]*)[\])], \[(?P<sizes>[\d, ]+)\]",
    ),
    S(
        "mesh_active",
        "active dimensions:",
        r"Successfully created meshes with active dimensions: \[(?P<names>[^\]]*)\]",
    ),
    S(
        "pipeline",
        "Using pipeline schedule",
        r"Using pipeline schedule (?P<schedule>\S+) with (?P<microbatches>\d+) (?:microbatches )?and (?P<stages>\d+) stages",
    ),
    S(
        "applied",
        "Applied ",
        r"(?:^|[\s:\]-])Applied (?P<what>(?:FSDP|HSDP|DDP|replicate|fully_shard|parallelisms|Sequence|(?:Float8 )?(?:tensorwise )?(?:Async )?Tensor|Context|CPU Off|\w+ activation|Data Par|Expert)[^\n]*?)(?: to the .*)?$",
    ),
    # -- swaps and conversions ----------------------------------------------------------------------------------------
    S(
        "override",
        "[Override]",
        r"\[Override\] (?P<name>[^:]+): (?P<module>\S+) (?P<before>\S+) -> (?P<after>\S+)(?P<options> with .*)?",
    ),
    S("override", "Applying overrides:", r"Applying overrides: (?P<options>\{.*\})", {"name": "config"}),
    S("overrides_applied", " override(s)", r"Applied (?P<count>\d+) override\(s\)"),
    S("overrides_none", "produced no replacements", r"override\.imports=(?P<imports>.*) produced no replacements"),
    S("converter", "Swapped to ", r"Swapped to (?P<what>.*?) ?layers?\b(?P<options>.*)"),
    S(
        "converter",
        "training active",
        r"(?P<what>Float8|MX\w*|NVFP4|LoRA)(?: tensorwise scaled)? training active(?: with (?P<options>.*))?",
    ),
    S("converter", "Converted ", r"Converted (?P<what>(?:Linear|GroupedExperts|layers).*)"),
    S("converter_failed", "Failed to swap to", r"Failed to swap to (?P<what>\S+) because (?P<reason>.*)"),
    S("kernel_fallback", "NKI-accelerated", r"(?P<message>(?:Failed to use )?NKI-accelerated \S+ kernel.*)"),
    S(
        "kernel_calls",
        "[pilot] kernel ",
        r"\[pilot\] kernel (?P<name>\S+) backend=(?P<backend>\S+) forward=(?P<forward>\d+) backward=(?P<backward>\d+)",
    ),
    S("pilot_check", "[pilot] check ", r"\[pilot\] check (?P<name>\S+)(?: (?P<values>.*))?"),
    # -- compiling ----------------------------------------------------------------------------------------------------
    S("compile", "Compiling ", r"Compiling (?P<what>model \S+|each \w+|the loss function|model) ?with torch\.compile"),
    S("compile", "Compiled each", r"Compiled (?P<what>each \w+) with torch\.compile"),
    S(
        "recompile_limit",
        "torch._dynamo hit config.",
        r"torch\._dynamo hit config\.(?:recompile|cache_size|accumulated_\w+)_limit \((?P<limit>\d+)\)",
    ),
    S("neff_cached", "Using a cached neff", r"Using a cached neff at (?P<path>\S+)"),
    S(
        "compile_error",
        "neuronx-cc",
        r"neuronx-cc compilation\)? with exit code (?P<exitcode>-?\d+)(?:: (?P<message>.*))?",
    ),
    S("compile_error", "Compilation failed for", r"Compilation failed for (?P<message>.*)"),
    S("compile_error", "[NCC_", r"\[(?P<code>NCC_[A-Z]+\d+)\] ?(?P<message>.*)"),
    # -- start --------------------------------------------------------------------------------------------------------
    S(
        "trainer",
        "Trainer is initialized with",
        rf"Trainer is initialized with local batch size (?P<local_batch>{_N}), global batch size (?P<global_batch>{_N})"
        rf"(?:, gradient accumulation steps (?P<accumulation>{_N}))?, sequence length (?P<sequence_length>{_N})"
        rf"(?:, total steps (?P<total_steps>{_N})(?: \(warmup (?P<warmup>{_N})\))?)?",
    ),
    S(
        "trainer",
        "Trainer is initialized with",
        rf"Trainer is initialized with (?P<tokens_per_rank>{_N}) tokens per DP rank, (?P<tokens_per_step>{_N}) tokens per train step"
        rf"(?:.*?maximum context length (?P<context_length>{_N}))?(?:.*?total steps (?P<total_steps>{_N}))?(?: \(warmup (?P<warmup>{_N})\))?",
    ),
    S(
        "training_start",
        "Training starts at step",
        rf"Training starts at step (?P<step>{_N})(?:.*?local batch size:? (?P<local_batch>{_N}))?(?:.*?global batch size (?P<global_batch>{_N}))?"
        rf"(?:.*?sequence length:? (?P<sequence_length>{_N}))?(?:.*?total steps:? (?P<total_steps>{_N}))?(?: ?\((?:warmup )?(?P<warmup>{_N})\))?",
    ),
    # -- checkpoints --------------------------------------------------------------------------------------------------
    S(
        "checkpoint_active",
        "Checkpointing active",
        r"Checkpointing active\. Checkpoints will be loaded from and saved to (?P<path>.+)",
    ),
    S(
        "checkpoint_load",
        "Loading the checkpoint",
        r"Loading the checkpoint (?:at step (?P<step>\d+)|from (?P<path>\S+?))\.?$",
    ),
    S(
        "checkpoint_load",
        "HF safetensors from",
        r"[Ll]oading (?:from )?HF safetensors from (?P<option>\S+?): (?P<path>\S+)",
    ),
    S("checkpoint_loaded", "Finished loading the", rf"Finished loading the checkpoint in (?P<seconds>{_F}) seconds"),
    S("checkpoint_none", "this is a fresh start", r"No checkpoint was provided, this is a fresh start"),
    S(
        "checkpoint_save",
        "aving ",
        rf"[Ss]aving (?:a|the) (?P<what>full |model weights only |model only )?checkpoint(?: in (?P<dtype>\S+))?(?: (?:at|in)(?: last)? step,?(?: step)? (?P<step>{_N}))?",
    ),
    S("checkpoint_stage", "Staging the checkpoint", r"Staging the checkpoint"),
    S(
        "checkpoint_saved",
        "Finished saving the",
        rf"Finished saving the checkpoint(?: \(or staging if async is enabled\))? ?in (?P<seconds>{_F}) seconds",
    ),
    S("checkpoint_staged", "Finished staging the", rf"Finished staging the checkpoint in (?P<seconds>{_F}) seconds"),
    S(
        "checkpoint_saved",
        "Last step checkpoint",
        rf"Last step checkpoint completed in (?P<seconds>{_F})s",
        {"what": "last step"},
    ),
    S("checkpoint_seed", "Created seed checkpoint", r"Created seed checkpoint"),
    # -- while it runs ------------------------------------------------------------------------------------------------
    S("gc", "[GC] ", rf"\[GC\] (?P<reason>.*?)\.?(?: took)? (?P<seconds>{_F}) seconds"),
    S(
        "dataset_reloop",
        "being re-looped",
        r"[Dd]ataset '?(?P<dataset>[^\s']+)'? is being re-looped(?:.*\(epoch (?P<epoch>\d+)\))?",
    ),
    S("dataset_end", "has run out of data", r"[Dd]ataset '?(?P<dataset>[^\s']+)'? has run out of data"),
    S("dataset_end", "Ran out of data", r"Ran out of data; last step was canceled"),
    S(
        "alloc_retries",
        "memory allocation retries",
        r"(?P<count>\d+) (?P<device_type>\S+|<built-in .*>) memory allocation retries",
    ),
    S("oom_warning", "OOM errors thrown", r"(?P<count>\d+) (?P<device_type>\S+|<built-in .*>) OOM errors thrown"),
    S(
        "profile",
        "profiler traces",
        r"(?P<what>Dumping|Finished dumping) profiler traces (?:at step (?P<step>\d+)|in (?P<seconds>[\d.]+) seconds)",
    ),
    S(
        "profile",
        "umping traces",
        r"(?P<what>Dumping|Finished dumping) traces (?:at step (?P<step>\d+)|in (?P<seconds>[\d.]+) seconds)",
    ),
    S("profile", "Profiling active", r"(?P<what>Profiling active)\.\s+Traces will be saved at (?P<path>\S+)"),
    S(
        "metrics_rank",
        "oss is not visible",
        r"Pipeline Parallel loss is not visible\. Please add rank (?P<rank_named>\d+)",
    ),
    S(
        "timeout_set",
        "adjusting timeout for all",
        r"Synchronizing and adjusting timeout for all ProcessGroups to (?P<timeout>[\d:]+)",
    ),
    S(
        "validation",
        "Validation completed",
        rf"Validation completed\. Average loss: (?P<loss>{_F}) over (?P<batches>\d+) batches",
    ),
    # -- how it ends --------------------------------------------------------------------------------------------------
    S(
        "nonfinite",
        "oss is not finite",
        r"Loss is not finite \(global_avg_loss=(?P<value>[^)]*)\) at step (?P<step>\d+)",
    ),
    S(
        "nonfinite",
        "gradient norm is not finite",
        r"Loss or gradient norm is not finite on at least one rank at step (?P<step>\d+)",
    ),
    S("training_completed", "Training completed", r"Training completed\.?\s*$"),
    S("process_group_destroyed", "Process group destroyed", r"Process group destroyed"),
    S("oom", "OutOfMemoryError: ", r"torch\.(?:cuda\.)?OutOfMemoryError: (?P<message>.*)"),
    S("oom", "CUDA error: out of memory", r"(?P<message>CUDA error: out of memory)"),
    S("oom", "UR_RESULT_ERROR_OUT_OF", r"(?P<message>UR_RESULT_ERROR_OUT_OF_(?:RESOURCES|DEVICE_MEMORY|HOST_MEMORY))"),
    S("oom", "NRT allocation failed", r"(?P<message>NRT allocation failed .*)"),
    S("oom", "TDRV:log_dev_mem", r"TDRV:log_dev_mem\s+(?P<message>Failed to allocate .*)"),
    S("nrt_error", "NRT EXECUTION FAILED", r"NRT EXECUTION FAILED: (?P<message>.*)"),
    S("nrt_error", "ERROR   NRT:", r"ERROR\s+NRT:(?P<function>\w+)\s+(?P<message>.*)"),
    S("collective_error", "Watchdog caught", r"Watchdog caught collective operation timeout: (?P<message>.*)"),
    S("collective_error", "Work timed out", r"Work timed out: (?P<message>.*)"),
    S("collective_error", "NCCL error", r"(?P<message>NCCL error.*)"),
    S("signal", "closing signal", r"Sending process (?P<pid>\d+) closing signal (?P<name>\w+)"),
    S("signal", " death signal", r"Received (?P<signal>\d+) death signal"),
    S("signal", "got signal: ", r"got signal: (?P<signal>\d+)"),
    S("signal", "died from signal", r"died from signal (?P<signal>\d+)"),
    S("signal", "slurmstepd: error", r"slurmstepd: error: (?P<message>.*CANCELLED.*)", {"name": "CANCELLED"}),
    S(
        "child_failed",
        "failed (exitcode:",
        r"failed \(exitcode: (?P<exitcode>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\)",
    ),
    S("child_failed_summary", "ChildFailedError:", r"ChildFailedError:\s*$"),
    S(
        "exception",
        "Error",
        r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception))(?::\s(?P<message>.*)|:?\s*$)",
    ),
    S("exception", "Exception", r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*Exception)(?::\s(?P<message>.*)|:?\s*$)"),
    S("exception", "KeyboardInterrupt", r"^(?P<type>KeyboardInterrupt)(?::\s(?P<message>.*)|\s*$)"),
)

KINDS: dict[str, str] = {}
