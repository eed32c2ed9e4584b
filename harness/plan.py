"""From the typed configuration to one without gaps: platform found, scale decided, every number checked.

No torch is imported, nothing is started: a plan is made on any machine.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from harness.config_checks import ConfigError, at_least, check_names, check_scale, check_training, known
from harness.data import DataConfig
from harness.initial import Initial, settle
from harness.mesh import Mesh, plan_mesh
from harness.nodes import Place, find_place
from harness.schema import PilotConfig, PlatformConfig
from harness.shapes import ModelShape
from kernels.limits import check_head_dim, check_sequence_length
from kernels.plan import SwapPlan, plan_swaps

CONF = Path(__file__).resolve().parent.parent / "conf"
UNSET: tuple[object, ...] = (None, "", {})
TRN2_48XLARGE_DEVICES = 16
DEFAULT_LNC = 2
TESTED_ON_TRAINIUM = {
    "torch": "2.14.0",
    "torch-neuronx": "2.14.3",
    "transformers": "5.16.0",
    "torchtitan": "0.2.2+neuron.1",
}
"""Versions that the public guide says it used on trn2.48xlarge."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is going to be trained, where and how: the configuration with every gap filled, and what follows from it."""

    config: PilotConfig
    shape: ModelShape
    """The model that is built."""

    @property
    def name(self) -> str:
        return f"{self.config.path.name}-{self.config.kernel.name}"

    place: Place = field(default_factory=Place)
    """Which node of the job this is."""
    initial: Initial = field(default_factory=Initial)
    """Where the first weights come from."""

    @property
    def ranks(self) -> int:
        """Processes of the whole job."""
        return known(self.config.platform.num_ranks) * self.config.platform.num_nodes

    @property
    def local_ranks(self) -> int:
        """Processes of each node."""
        return known(self.config.platform.num_ranks)

    @property
    def chips(self) -> int | None:
        """Accelerator chips of the whole job."""
        chips = self.config.platform.num_chips
        return None if chips is None else chips * self.config.platform.num_nodes

    @property
    def price_per_hour(self) -> float | None:
        """Of all nodes together."""
        price = self.config.platform.price_per_hour
        return None if price is None else price * self.config.platform.num_nodes

    @property
    def mesh(self) -> Mesh:
        return plan_mesh(self.ranks, self.config.train.flags)

    @property
    def rehearsal(self) -> bool:
        return self.config.rehearsal

    swaps: SwapPlan
    """Which modules are replaced by kernels, and what must be seen of it."""

    @property
    def lnc(self) -> int:
        """Physical cores per logical core that kernels are written and checked for: 2, as on Trainium2, elsewhere."""
        return self.config.platform.lnc or DEFAULT_LNC

    @property
    def torch_version(self) -> str | None:
        """The torch that will train: the installed one, or, planning for Trainium elsewhere, the one tested there."""
        elsewhere = self.config.platform.device == "neuron" and package_version("torch-neuronx") is None
        return TESTED_ON_TRAINIUM["torch"] if elsewhere else torch_version()

    @property
    def micro_batches(self) -> int:
        """Gradient accumulation steps."""
        train = self.config.train
        return known(train.global_batch_size) // (known(train.local_batch_size) * self.mesh.data_ranks)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return known(self.config.train.global_batch_size) * known(self.config.train.seq_len)


def make_plan(config: PilotConfig) -> Plan:
    """Fill the gaps of a configuration and check it.

    Raises:
        ConfigError: an impossible or contradictory value.
    """
    platform = find_platform(config.platform)
    rehearsal = config.scale.rehearsal if config.scale.rehearsal is not None else platform.device == "cpu"
    if platform.device == "cpu" and not rehearsal:
        raise ConfigError("full scale does not train on CPU: leave out scale.rehearsal=false, or name an accelerator")
    check_scale(config)
    place = _place(platform)
    platform = replace(
        platform,
        num_ranks=_num_ranks(config, platform, rehearsal),
        **dict.fromkeys(("node_rank", "rdzv_endpoint", "rdzv_id", "local_addr")),  # of a start, not of what is measured
    )
    train = _fill_training(config, platform, rehearsal)
    data = find_data(config.data, rehearsal=rehearsal)
    config = replace(config, platform=platform, train=train, data=data, rehearsal=rehearsal)
    check_training(config)
    check_names(config)
    shape = config.path.rehearsal_shape() if rehearsal else config.path.full_shape()
    if config.scale.num_layers is not None:
        shape = replace(shape, num_layers=config.scale.num_layers)
    config, initial, shape = _settle_initial(config, shape, place)
    return Plan(config=config, shape=shape, swaps=_plan_swaps(config, shape), place=place, initial=initial)


# -- platform -----------------------------------------------------------------------------------------------------


def find_platform(asked: PlatformConfig) -> PlatformConfig:
    """``asked`` itself, or, for ``auto``, the platform of this machine with the values that were asked for on top."""
    if asked.name != "auto":
        return asked
    from omegaconf import OmegaConf

    found = OmegaConf.merge(PlatformConfig, OmegaConf.load(CONF / "platform" / f"{detect_platform()}.yaml"))
    values = {item.name: getattr(asked, item.name) for item in fields(asked) if item.name != "name"}
    return OmegaConf.to_object(
        OmegaConf.merge(found, {key: value for key, value in values.items() if value not in UNSET})
    )


def detect_platform() -> str:
    """trn2_48xlarge, cuda or cpu, from the device files that the drivers make."""
    neuron = sorted(Path("/dev").glob("neuron[0-9]*"))
    if len(neuron) == TRN2_48XLARGE_DEVICES:
        return "trn2_48xlarge"
    if neuron:
        raise ConfigError(
            f"this machine has {len(neuron)} Neuron devices, a trn2.48xlarge has {TRN2_48XLARGE_DEVICES}: name the "
            "platform, e.g. platform=trn2_48xlarge platform.num_ranks=4 platform.num_chips=1"
        )
    return "cuda" if num_cuda_devices() else "cpu"


def num_cuda_devices() -> int:
    return len(list(Path("/dev").glob("nvidia[0-9]*"))) if shutil.which("nvidia-smi") else 0


def _num_ranks(config: PilotConfig, platform: PlatformConfig, rehearsal: bool) -> int:
    ranks = platform.num_ranks
    if ranks is None:
        ranks = config.path.rehearsal_ranks(torch_version()) if platform.device == "cpu" else num_cuda_devices()
        if ranks == 0:
            raise ConfigError("no CUDA device is found here: say how many ranks to plan for, e.g. platform.num_ranks=8")
    at_least("platform.num_ranks", ranks, 1)
    usable = config.path.rehearsal_ranks(torch_version())
    if platform.device == "cpu" and rehearsal and ranks * platform.num_nodes > 1 and usable == 1:
        raise ConfigError(
            f"path={config.path.name} trains on one CPU rank with torch {torch_version()}: platform.num_ranks=1, "
            f"or torch >= {config.path.rehearsal.multi_rank_min_torch}"
        )
    return ranks


def _place(platform: PlatformConfig) -> Place:
    try:
        return find_place(platform)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def torch_version() -> str | None:
    """Version of the installed torch, without importing it; None where there is none."""
    return package_version("torch")


def package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


# -- kernels ------------------------------------------------------------------------------------------------------


def _plan_swaps(config: PilotConfig, shape: ModelShape) -> SwapPlan:
    lnc = config.platform.lnc or DEFAULT_LNC
    try:
        swaps = plan_swaps(
            config.kernel.name,
            num_layers=shape.num_layers,
            layers=config.kernel.layers,
            transformers=config.path.backend == "transformers",
            has_experts=shape.is_moe,
            backend=config.kernel.backend,
            lnc=lnc,
        )
        if "nki_rope" in swaps.kernels:
            check_sequence_length(known(config.train.seq_len), lnc)
            check_head_dim(shape.head_dim)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return swaps


# -- weights ------------------------------------------------------------------------------------------------------


def _settle_initial(config: PilotConfig, shape: ModelShape, place: Place) -> tuple[PilotConfig, Initial, ModelShape]:
    """Where the first weights come from. They know their own tokens only, so that their tokenizer comes with them."""
    try:
        initial, shape, init = settle(config, shape, requeued=place.job is not None and place.job.restarts > 0)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    data = config.data
    if data.tokenizer is None and initial.directory and (initial.directory / "tokenizer.json").is_file():
        data = replace(data, tokenizer=str(initial.directory))
    return replace(config, init=init, data=data), initial, shape


# -- data ---------------------------------------------------------------------------------------------------------


def find_data(asked: DataConfig, *, rehearsal: bool) -> DataConfig:
    """``asked`` itself; for ``auto`` the torchtitan checkout's c4_test at full scale if there is one, else pydoc."""
    if asked.name != "auto":
        return asked
    checkout = None if rehearsal else torchtitan_checkout()
    name = "pydoc" if checkout is None else "c4_test"
    return replace(asked, name=name, kind=name, checkout=str(checkout) if checkout else None)


def torchtitan_checkout() -> Path | None:
    """A torchtitan source tree with its test data: TORCHTITAN_DIR, or where an editable install points to."""
    spec = importlib.util.find_spec("torchtitan")
    places = [os.environ.get("TORCHTITAN_DIR"), Path(spec.origin).parent.parent if spec and spec.origin else None]
    return next((Path(place) for place in places if place and (Path(place) / "tests/assets/c4_test").is_dir()), None)


# -- training -----------------------------------------------------------------------------------------------------


def _fill_training(config: PilotConfig, platform: PlatformConfig, rehearsal: bool):
    """A path's global batch is that of one node; several nodes train on as many times more."""
    train, full, small = config.train, config.path.full, config.path.rehearsal
    nodes, ranks = platform.num_nodes, known(platform.num_ranks) * platform.num_nodes
    scale = small if rehearsal else full
    local = train.local_batch_size if train.local_batch_size is not None else scale.local_batch_size
    planned = local * ranks if rehearsal else full.global_batch_size * nodes
    return replace(
        train,
        seq_len=train.seq_len if train.seq_len is not None else scale.seq_len,
        local_batch_size=local,
        global_batch_size=train.global_batch_size if train.global_batch_size is not None else planned,
        learning_rate=train.learning_rate if train.learning_rate is not None else scale.learning_rate,
        warmup_steps=train.warmup_steps if train.warmup_steps is not None else scale.warmup_steps,
        dtype=train.dtype if train.dtype is not None else scale.mixed_precision_param,
    )
