"""The typed configuration of a pilot: one dataclass per Hydra group, registered so that a wrong key or type is refused.

A field that is null by default is decided by the path and the platform (``harness.plan``); the configuration written to
the run directory has no such gaps left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.data import DataConfig
from harness.paths import PathConfig
from harness.phases import PhasesConfig


@dataclass
class PlatformConfig:
    """Where a pilot runs."""

    name: str = "auto"
    """auto, trn2_48xlarge, cuda, cpu."""
    device: str = ""
    """neuron, cuda or cpu: what torch calls the device."""
    num_ranks: int | None = None
    """Processes of torchrun on one node; null: one per device, or what the path's rehearsal uses on CPU."""
    num_nodes: int = 1
    """Nodes of the job, all alike. Under Slurm a step with one task on each; elsewhere the same command on each."""
    node_rank: int | None = None
    """Which node this is, 0 to num_nodes - 1; null: Slurm says it. Node 0 records. Not part of what is recorded, as the
    next three."""
    rdzv_endpoint: str | None = None
    """HOST:PORT on node 0 where the nodes meet; null: node 0 chooses. On Trainium the next port is used as well."""
    rdzv_id: str | None = None
    """Name of this start, the same on all nodes and never used before; null: from the Slurm job."""
    local_addr: str | None = None
    """By which address the other nodes reach this one; null: its name."""
    lnc: int | None = None
    """Physical NeuronCores per logical NeuronCore (1 or 2); null where there are none."""
    num_chips: int | None = None
    """Accelerator chips of a node, for numbers per chip."""
    chip: str = ""
    """Name of the chip in the table of peaks (harness/peaks.py), e.g. trn2, h100; empty: what the log says."""
    peak_flops_per_rank: float | None = None
    """Overrides the table of peaks: dense FLOP/s of one rank's device at the training's precision."""
    price_per_hour: float | None = None
    """Price of the node per hour. There is no default: prices differ by region, contract and date."""
    price_date: str | None = None
    """When that price was read, recorded with the cost."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment of the ranks, beside what the harness was started with."""


@dataclass
class KernelConfig:
    """Which kernels replace the library's modules."""

    name: str = "baseline"
    backend: str = "auto"
    """auto, neuron, simulator, reference: what executes a kernel. auto is neuron on Trainium, reference on CPU."""
    layers: str = "*"
    """Which layers are swapped: `*`, `0`, `1[0-9]`, `4-7`, or several of them with commas."""
    gate: bool = True
    """Check the kernels against their references before launch."""


@dataclass
class InitConfig:
    """Where the first weights come from."""

    mode: str = "random"
    """random or pretrained."""
    path: str | None = None
    """Directory of Hugging Face safetensors with config.json; or a hub id, organisation/name, looked up in the local
    cache and downloaded where there is a network."""
    revision: str | None = None
    """Branch, tag or commit of a hub id; null: main."""
    adopt_config: bool = False
    """Build the model that the weights' config.json describes where it differs from the path's. What was adopted is
    written below; false refuses such weights."""
    adopted: dict[str, Any] = field(default_factory=dict)
    """Written by the harness: keys of config.json whose values replace the path's. Setting it does nothing."""
    resumed_step: int | None = None
    """Written by the harness: step of the old checkpoint that training goes on from. Setting it does nothing."""


@dataclass
class ChecksConfig:
    """What a run must prove, and what a failure means. `checks=strict` makes every failure one of the run."""

    strict: bool = False
    """Exit code 1 also for checks that otherwise only report: the band of the first loss."""
    reference_loss: str = "auto"
    """auto, always, never: the first loss by plain Transformers on the same batch. auto: given weights, up to a minute
    and 8 GB. always with random weights saves those of before the first step."""


@dataclass
class ExportConfig:
    """The trained weights as Hugging Face safetensors, in `export` of the run directory, loaded again as a check."""

    enabled: bool | None = None
    """Null: in a rehearsal, and where a copy is asked for."""
    dtype: str = "float32"
    """float32, bfloat16 or float16."""
    copy_to: str | None = None
    """Any fsspec URL, e.g. s3://BUCKET/PREFIX: the export is copied below it, into a directory of the run's id, and
    verified there."""


@dataclass
class TrackingConfig:
    """Where runs are shown. The run directory is written in any case."""

    enabled: bool = True
    uri: str | None = None
    """Any MLflow tracking URI; null: sqlite in the runs directory."""
    flush_s: float = 5.0
    """How often new rows are sent while training, seconds."""
    wait_s: float = 120.0
    """How long the end of a pilot waits for a tracker that makes progress, seconds."""


@dataclass
class ScaleConfig:
    """Size of the model relative to what the path promises."""

    rehearsal: bool | None = None
    """Narrow widths; null: true on CPU only."""
    num_layers: int | None = None
    """Fewer layers than the path promises, for tests. Such a run says so and is compared with its like only."""


@dataclass
class TrainConfig:
    """The training itself. Null: as the path says for its scale."""

    steps: int = 10
    seq_len: int | None = None
    """Tokens per sequence; on Trainium a multiple of 128 x LNC."""
    local_batch_size: int | None = None
    """Sequences per rank and micro step."""
    global_batch_size: int | None = None
    """Sequences per optimizer step over all ranks."""
    learning_rate: float | None = None
    warmup_steps: int | None = None
    """Steps over which the learning rate rises."""
    dtype: str | None = None
    """Type of the parameters in forward and backward: bfloat16 or float32."""
    seed: int = 1
    compile: bool = False
    log_freq: int = 1
    flags: list[str] = field(default_factory=list)
    """Further torchtitan options, appended to the command as they are, e.g. `[--profiler.enable_profiling]`."""
    document_mask: bool = False
    """False: plain causal attention and sequential positions. True: both stop at document boundaries."""


@dataclass
class SamplingConfig:
    """Samples of host and device while training."""

    enabled: bool = True
    interval_s: float = 2.0
    """Seconds between two samples."""


@dataclass
class LaunchConfig:
    """How the processes are started, watched and ended."""

    grace_s: float = 10.0
    """Time for the ranks between SIGTERM and SIGKILL, seconds."""
    stall_s: float = 600.0
    """Longest time without a new step once steps are coming, seconds."""
    compile_stall_s: float = 7200.0
    """Longest time until the first step, seconds: on Trainium it compiles."""
    on_nonfinite: str = "warn"
    """stop or warn when a loss is NaN or infinite."""
    min_free_mib: int = 100
    """Less free space than this in `runs` ends a training in order, MiB; to start one takes twice as much."""
    join_s: float = 600.0
    """How long the nodes of a job wait for each other at its start, seconds."""
    node_lost_s: float = 60.0
    """A node that shows no sign of life in the run directory for this long is lost, and the others end, seconds."""
    scratch: str | None = None
    """A node-local directory for the logs of ranks, copied to the run directory at the end; null: no detour."""
    command: list[str] = field(default_factory=list)
    """Started instead of torchrun, with the same environment: for other launchers, and for tests of the harness."""


@dataclass
class PilotConfig:
    """One pilot."""

    path: PathConfig = field(default_factory=PathConfig)
    platform: PlatformConfig = field(default_factory=PlatformConfig)
    kernel: KernelConfig = field(default_factory=KernelConfig)
    init: InitConfig = field(default_factory=InitConfig)
    data: DataConfig = field(default_factory=DataConfig)
    phases: PhasesConfig = field(default_factory=PhasesConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    checks: ChecksConfig = field(default_factory=ChecksConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    experiment_name: str = "pilot"
    """Directory below `runs` and MLflow experiment."""
    runs: str = "runs"
    """Where run directories, caches and the local MLflow database go."""
    replicate: int = 0
    """Index of a repetition; changes nothing else."""
    block: int | None = None
    """Block of an interleaved sweep."""
    order: int | None = None
    """Place in the order of a sweep."""
    sweep: str | None = None
    """Name of the interleaved sweep that a run belongs to; set by it."""
    resume: bool = False
    """Go on from the checkpoint in the folder that `--dump_folder` in train.flags names; false refuses one there."""
    rehearsal: bool = False
    """Written by the harness: whether this is a rehearsal. Setting it does nothing."""
    dry_run: bool = False
    """Print command, environment, model identity and preflight; start nothing."""


def register() -> None:
    """Put the schema into Hydra's ConfigStore as `pilot_schema`, the first entry of conf/config.yaml's defaults."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="pilot_schema", node=PilotConfig)
