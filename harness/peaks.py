"""Peak FLOP/s of accelerators at BF16, dense, one table with a source per entry; an unknown device has no peak.

A peak is per *device of one rank*: a GPU, one die of a two-die card where each is a device, or one logical NeuronCore.
A Neuron chip is entered per physical core and multiplied by LNC (physical cores per logical core), which is never
assumed: torchtitan 0.3.0 does assume 2, so that its MFU at LNC=1 is half of what it should be.

Trainium2 has at least five values in use for one logical core at LNC=2; see ``TRAINIUM2_VALUES``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Dense BF16 FLOP/s of one device, or of one physical NeuronCore where ``cores_per_chip`` is given."""

    name: str
    pattern: str
    """Regular expression, searched in the device name without regard to case; the first entry that matches counts."""
    flops: float
    source: str
    cores_per_chip: int = 0
    """Physical NeuronCores of the chip; 0 where a device is not made of logical cores."""


NEURON_DOCS = "AWS Neuron documentation"
TABLE: tuple[Peak, ...] = (
    Peak(
        name="trn3",
        pattern=r"\btrn3[a-z]*\b|trainium ?3",
        flops=671e12 / 8,
        cores_per_chip=8,
        source=f"{NEURON_DOCS}, Trainium3 Architecture: 671 BF16 TFLOPS per chip of 8 NeuronCore-v4",
    ),
    Peak(
        name="trn2",
        pattern=r"\btrn2[a-z]*\b|trainium ?2",
        flops=667e12 / 8,
        cores_per_chip=8,
        source=f"{NEURON_DOCS}, Trainium2 Architecture: 667 BF16 TFLOPS per chip of 8 NeuronCore-v3",
    ),
    Peak(
        name="trn1",
        pattern=r"\btrn1n?\b|trainium(?! ?[23])|\binf2\b",
        flops=190e12 / 2,
        cores_per_chip=2,
        source=f"{NEURON_DOCS}, Trainium Architecture: 190 BF16 TFLOPS per chip of 2 NeuronCore-v2",
    ),
    Peak(name="h100-nvl", pattern=r"h100.*nvl", flops=835e12, source="NVIDIA H100 datasheet, NVL, without sparsity"),
    Peak(name="h100-pcie", pattern=r"h100.*pcie", flops=756e12, source="NVIDIA H100 datasheet, PCIe, without sparsity"),
    Peak(name="h100", pattern=r"\bg?h100\b", flops=989e12, source="NVIDIA H100 datasheet, SXM, without sparsity"),
    Peak(name="h200", pattern=r"\bg?h200\b", flops=989e12, source="NVIDIA H200 datasheet, SXM, without sparsity"),
    Peak(name="h20", pattern=r"\bh20\b", flops=148e12, source="torchtitan 0.3.0, tools/utils.py (press figure)"),
    Peak(
        name="gb200",
        pattern=r"\bgb[23]00\b",
        flops=2.5e15,
        source="NVIDIA DGX GB200 datasheet, half of the sparse figure; per GPU, not per superchip",
    ),
    Peak(name="b200", pattern=r"\bb[23]00\b", flops=2.25e15, source="NVIDIA DGX B200 datasheet, without sparsity"),
    Peak(name="a100", pattern=r"\ba100\b", flops=312e12, source="NVIDIA A100 datasheet, without sparsity"),
    Peak(name="a6000", pattern=r"\brtx a6000\b", flops=154.85e12, source="NVIDIA RTX A6000 datasheet, no sparsity"),
    Peak(name="l40s", pattern=r"\bl40s\b", flops=362e12, source="NVIDIA L40S datasheet, without sparsity"),
    Peak(name="mi355x", pattern=r"\bmi355x\b", flops=2.5e15, source="AMD Instinct MI355X product page, no sparsity"),
    Peak(
        name="mi300x",
        pattern=r"\bmi3(00|25)x\b",
        flops=1307.4e12,
        source="AMD Instinct MI300X and MI325X product pages, without sparsity (torchtitan 0.3.0 rounds to 1300)",
    ),
    Peak(name="mi250x", pattern=r"\bmi250x\b", flops=191.5e12, source="AMD Instinct MI250X page, per die (GCD)"),
    Peak(name="tpu-v4", pattern=r"tpu ?v4", flops=275e12, source="Google Cloud TPU system architecture, per chip"),
    Peak(
        name="tpu-v5e",
        pattern=r"tpu ?v5 ?e|tpu v5 lite",
        flops=197e12,
        source="Google Cloud TPU pages, per chip",
    ),
    Peak(name="tpu-v5p", pattern=r"tpu ?v5p", flops=459e12, source="Google Cloud TPU system architecture, per chip"),
    Peak(name="tpu-v6e", pattern=r"tpu ?v6e", flops=918e12, source="Google Cloud TPU system architecture, per chip"),
)

TRAINIUM2_VALUES: dict[float, str] = {
    158e12: "79 BF16 TFLOPS of the NeuronCore-v3 page x 2 (torchtitan since 2026-02)",
    157e12: "the same, rounded down (an early TorchNeuron change)",
    157.2864e12: "128 x 128 systolic array x 2 x 2.4 GHz x 2 cores (AWS's torchtitan fork of 2025)",
    166.75e12: "667 TFLOPS of the Trainium2 chip / 4 logical cores (used here; 64 of them make the node's 10.7 PFLOPS)",
    316e12: "632 TFLOPS / 2: a chip taken for two logical cores, but it has four at LNC=2",
    312e12: "an A100's peak, taken by torchtitan for any device that it does not know",
}
"""Denominators met for one logical core of Trainium2 at LNC=2, FLOP/s, and where each comes from."""


@dataclass(frozen=True, kw_only=True)
class RankPeak:
    """The peak of one rank's device, or None and the reason."""

    flops: float | None
    name: str = ""
    source: str = ""
    reason: str = ""
    """Why there is no peak, and what to type."""


def peak_of_rank(
    device: str, *, lnc: int | None = None, dtype: str | None = None, override: float | None = None, source: str = ""
) -> RankPeak:
    """Dense BF16 peak of the device of one rank, FLOP/s.

    ``device``: a name of the table or what the machine calls its device ("NVIDIA H100 80GB HBM3"). ``lnc``: physical
    per logical NeuronCore, needed on Trainium. ``dtype``: type that the matrix products run in; the table is for 16-bit
    types only. ``override`` (with ``source``) wins over the table. Raises ValueError for an override or LNC that cannot
    be.
    """
    if override is not None:
        if not override > 0:
            raise ValueError(f"platform.peak_flops_per_rank is {override}; expected FLOP/s above 0, e.g. 158e12")
        return RankPeak(flops=override, name=device, source=source or "given: platform.peak_flops_per_rank")
    if dtype and dtype.removeprefix("torch.") not in ("bfloat16", "float16", "bf16", "fp16"):
        return RankPeak(
            flops=None,
            name=device,
            reason=f"the table of peaks is for bfloat16, not for {dtype}; set platform.peak_flops_per_rank",
        )
    entry = next((peak for peak in TABLE if device == peak.name), None) or next(
        (peak for peak in TABLE if re.search(peak.pattern, device, re.IGNORECASE)), None
    )
    if entry is None:
        known = ", ".join(peak.name for peak in TABLE)
        return RankPeak(
            flops=None,
            name=device,
            reason=f"no peak is known for device '{device or 'unnamed'}'; set platform.chip to one of {known}, "
            "or platform.peak_flops_per_rank",
        )
    if not entry.cores_per_chip:
        return RankPeak(flops=entry.flops, name=entry.name, source=entry.source)
    if lnc is None and entry.name != "trn1":
        return RankPeak(flops=None, name=entry.name, reason="LNC is not known; set platform.lnc to 1 or 2")
    cores = lnc or 1  # NeuronCore-v2 has no logical cores
    if cores not in (1, 2) or (entry.name == "trn1" and cores != 1):
        raise ValueError(f"platform.lnc is {lnc}; {entry.name} has {'1 or 2' if entry.name != 'trn1' else '1'}")
    return RankPeak(flops=entry.flops * cores, name=entry.name, source=f"{entry.source}; x LNC {cores}")


def explain_denominator(flops: float) -> str:
    """Where a peak printed by a log comes from, as far as is known; empty if it is not."""
    for value, text in TRAINIUM2_VALUES.items():
        if abs(flops / value - 1) < 0.0005:
            return text
    return next((f"{peak.name}: {peak.source}" for peak in TABLE if abs(flops / peak.flops - 1) < 0.0005), "")
