"""The grammar of step lines: every way a training step has been printed, as tables.

A record is a lead, which gives the step number, and columns ``label: value``. ``LEADS`` and ``COLUMNS`` are the
grammar: one walk over the columns, in whatever order they come and whichever are there, reads all shapes torchtitan
has had,

    S1   2024-02-01   step: 1, current loss: 10.547, lr: [0.0003]
    S2   2024-02-22   step: 1,  current loss: 10.547,  lr: 0.0003
    S3   2024-02-26   step:  1  loss: 10.9183  iter:  1.9258  data: 0.0303  lr: 0.0003
    S4   2024-03-12   step:  1  loss: 10.8424  wps: 1,024  peak_memory: 40.44%
    S5   2024-03-15   step:  1  loss: 10.8424  memory:  0.84GiB(0.88%)  wps: 1,024
    S6   2024-03-20   S5 and  mfu: 0.05%
    S7   2024-11-23   tps: where wps: was
    S8   2025-02-18   S7 with  tflops: 8.26  before mfu (v0.1.0)
    S9   2025-06-25   S8 with  grad_norm:  1.4599  after loss
    S10  2025-07-15   S9 in other colours (v0.2.0, v0.2.1); since then "validate step:" too, without norm, FLOPS, MFU
    S11  2026-02-06   S10 with five decimals of loss (v0.2.2)
    S12  2026-02-28   S11, with  mfu: N/A  where anything is quantised

and the forks'. ``CANONICAL`` is S5 to S12 as one expression, for speed. (S0, ``current loss: 10.5``, has no step: an
event.)
"""

from __future__ import annotations

import re

NEEDLES = (b"step:", b"step=", b"loss:", b"| Loss:")

_DIGITS = rb"\d{1,3}(?:,\d{3})+|\d+"
_NUMBER = rb"(?:[-+]?(?:(?:" + _DIGITS + rb")(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?i:inf(?:inity)?|nan))"
_AFTER = rb"(?=\Z|[\s|*`\"'\\<(\]});]|[,.](?:\s|[\"'\\])|\.\.\.)"

VALUES = {
    "number": re.compile(rb"\[?(" + _NUMBER + rb")\]?" + _AFTER),
    "memory": re.compile(rb"(" + _NUMBER + rb")\s?GiB(?:\((" + _NUMBER + rb")%\)|(\([^)]{0,12}\Z)|(?=\Z|\s))"),
    "percent": re.compile(rb"(" + _NUMBER + rb")\s?%"),
    "mfu": re.compile(rb"(?:(" + _NUMBER + rb")\s?%|(N/A)" + _AFTER + rb")"),
    "rate": re.compile(rb"(" + _NUMBER + rb")(?: tokens/sec)?" + _AFTER),
}

COLUMNS: dict[bytes, tuple[str, str]] = {
    # label: (column of a row, kind of value)
    b"loss": ("loss", "number"),
    b"current loss": ("loss", "number"),  # S1, S2
    b"Loss": ("loss", "number"),  # "Step 1/20 | Loss: ..."
    b"global_avg_loss": ("loss", "number"),  # key=value
    b"grad_norm": ("grad_norm", "number"),
    b"memory": ("memory_gib", "memory"),
    b"peak_memory": ("memory_pct", "percent"),  # S4
    b"wps": ("tps", "number"),  # S4 to S6; always meant tokens per second and device
    b"tps": ("tps", "number"),
    b"throughput(tps)": ("tps", "number"),  # key=value
    b"Throughput": ("tps", "rate"),  # "Step 1/20 | ..."
    b"tflops": ("tflops", "number"),
    b"mfu": ("mfu", "mfu"),
    b"mfu(%)": ("mfu", "number"),  # key=value
}
DECIMALS = {"loss": 4, "grad_norm": 4, "tflops": 2}
"""Digits after the point that torchtitan prints at least: fewer at the end of a line are a cut."""

LEADS = {
    "step: 10": re.compile(
        rb"step:\s*(\d{1,12})(?:/(\d{1,12})\s*=\s*[\d.]+%)?(?=[\s,|]|\Z)"
    ),  # AICrossSim: 640/644 = 99.4%
    "step=10": re.compile(rb"step=(\d{1,12})()(?=\s)(?=.{0,80}\bglobal_avg_loss=)"),  # saforem2/mmm
    "Step 1/20 |": re.compile(rb"Step (\d{1,12})/(\d{1,12}) \|(?= Loss:)"),  # minimal TPU trainer
}
LEAD = re.compile(rb"step:|\bstep=(?=\d)|\bStep (?=\d+/\d+ \|)")
"""Where a record may begin."""

_GAP = rb"[ \t]*+(?:\x1b?\[[\d;]++m)?+[ \t]*+"
_ENDS = rb"(?=[ \t\r\n\x1b\[]|\Z)"
_CANONICAL = (
    rb"step:[ \t]*+(\d{1,12})" + _ENDS + _GAP + rb"loss:[ \t]*+(-?\d{1,20}\.\d{4,5}|nan|-?inf)" + _ENDS
    + rb"(?:" + _GAP + rb"grad_norm:[ \t]*+(\d{1,40}\.\d{4}|nan|inf)" + _ENDS + rb")?+"
    + rb"(?:" + _GAP + rb"memory:[ \t]*+(-?\d{1,9}\.\d\d)GiB\((-?\d{1,9}\.\d\d|nan|inf)%\))?+"
    + rb"(?:" + _GAP + rb"[tw]ps:[ \t]*+(\d{1,3}(?:,\d{3})*+)" + _ENDS + rb")?+"
    + rb"(?:" + _GAP + rb"tflops:[ \t]*+(\d{1,3}(?:,\d{3})*+\.\d\d)" + _ENDS + rb")?+"
    + rb"(?:" + _GAP + rb"mfu:[ \t]*+(?:(\d{1,9}\.\d\d)%|(N/A)" + _ENDS + rb"))?+"
)  # fmt: skip
CANONICAL = re.compile(_CANONICAL)
CANONICAL_LINE = re.compile(_CANONICAL + rb"(?:[ \t\r]|\x1b?\[[\d;]*+m)*+\n")
CANONICAL_COLUMNS = (
    "loss",
    "grad_norm",
    "memory_gib",
    "memory_pct",
    "tps",
    "tflops",
    "mfu",
)
