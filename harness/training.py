"""From a plan to what the training processes are given: the spec file, the command and the environment."""

from __future__ import annotations

from pathlib import Path

from harness import data
from harness.launch import SPEC, torchrun_command
from harness.nodes import Place, network_environment, rendezvous_options
from harness.plan import ConfigError, Plan, known
from harness.titan.spec import DataSpec, TitanSpec, titan_arguments
from harness.weights_plan import checkpoint_spec

CACHE = ".cache"
SPEC_FILE, RANK_LOGS, DUMP = "titan.json", "ranks", "dump"


def cache_dir(plan: Plan) -> Path:
    """Where tokenizers, corpora and generated model configurations are kept, shared by all runs."""
    return Path(plan.config.runs) / CACHE


def make_spec(plan: Plan, run: Path, *, prepare: bool) -> TitanSpec:
    """What the training process builds and trains.

    Args:
        run: the run directory, which receives torchtitan's own output.
        prepare: make tokenizer and corpus ready; False names the places only (dry run).

    Raises:
        ConfigError: data or tokenizer that cannot be used.
    """
    config, train = plan.config, plan.config.train
    return TitanSpec(
        path=config.path.name,
        shape=plan.shape,
        seq_len=known(train.seq_len),
        local_batch_size=known(train.local_batch_size),
        global_batch_size=known(train.global_batch_size),
        steps=train.steps,
        ranks=plan.ranks,
        device=config.platform.device,
        learning_rate=float(train.learning_rate or 0.0),
        warmup_steps=known(train.warmup_steps),
        seed=train.seed,
        mixed_precision_param=str(train.dtype),
        document_mask=train.document_mask,
        compile=train.compile,
        compile_backend="neuron" if config.platform.device == "neuron" else None,
        override_imports=plan.swaps.override_imports,
        log_freq=train.log_freq,
        hf_model=_transformers_model(plan),
        data=_data(plan, prepare),
        checkpoint=checkpoint_spec(plan, run),
        dump_folder=str(run.resolve() / DUMP),
    )


def _transformers_model(plan: Plan) -> str | None:
    """A local directory that the user named; otherwise the training writes a config.json from the shape itself."""
    named = plan.config.path.hf_model
    return str(Path(named).resolve()) if plan.config.path.backend == "transformers" and Path(named).is_dir() else None


def _data(plan: Plan, prepare: bool) -> DataSpec:
    try:
        source = data.resolve(plan.config.data)
        if not prepare:
            return DataSpec(name=source.name, files=source.files, text_field=source.text_field)
        from harness.titan.assets import prepare_data

        return prepare_data(source, cache=cache_dir(plan), vocab=plan.shape.vocab)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def rank_logs(run: Path, node: int) -> Path:
    """Where the ranks of a node log: those of other nodes beside those of node 0, which are ``ranks``."""
    return run / (f"{RANK_LOGS}.node{node}" if node else RANK_LOGS)


def command(plan: Plan, spec: TitanSpec, run: Path, place: Place | None = None, logs: Path | None = None) -> list[str]:
    """The torchrun command of one node of this pilot: of this one, or of ``place``; ``logs`` is for rank logs."""
    place = place or plan.place
    return torchrun_command(
        num_ranks=plan.local_ranks,
        log_dir=logs or rank_logs(run, place.rank),
        arguments=[*titan_arguments(spec, torch_version=plan.torch_version), *plan.config.train.flags],
        rendezvous=rendezvous_options(place, join_s=plan.config.launch.join_s),
    )


def environment(plan: Plan, run: Path, place: Place | None = None) -> dict[str, str]:
    """What the ranks get on top of the harness's own environment."""
    return {
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PILOT_CACHE": str(cache_dir(plan).resolve()),
        **network_environment(plan.config.platform.device, place or plan.place),
        **plan.config.platform.env,
        **plan.swaps.environment,
        SPEC: str(run.resolve() / SPEC_FILE),
    }
