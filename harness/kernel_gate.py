"""The numeric gate of a pilot: the kernels' own source against its references, for this run's shapes, before launch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from harness.plan import Plan, known
from kernels.plan import LayerShape, gate_arguments

TIMEOUT_S = 900.0
"""On Trainium the gate compiles its kernels first."""


@dataclass(frozen=True)
class GateResult:
    """``checks`` are those of ``python -m kernels check --json``; ``error`` says why there are none."""

    checks: tuple[dict[str, Any], ...]
    error: str = ""

    @property
    def passed(self) -> bool:
        return bool(self.checks) and not self.error and all(check["passed"] for check in self.checks)

    @property
    def reason(self) -> str:
        """One line: what missed, or how many passed and where they ran."""
        if self.error:
            return f"kernel gate: {self.error}"
        missed = [check for check in self.checks if not check["passed"]]
        if missed:
            first = missed[0]
            what = f"{first['kernel']} {first['what']}: {first['measure']} {first[first['measure']]}"
            count = f"{len(missed)} of {len(self.checks)} checks missed"
            return f"kernel gate: {what}, tolerance {first['tolerance']}; {count}"
        where = ", ".join(sorted({check["backend"] for check in self.checks}))
        return f"{len(self.checks)} checks within tolerance on the {where}"

    def metrics(self) -> dict[str, Any]:
        """``kernel_check/...`` metrics: the difference that each check measured."""
        return {check["metric"]: check[check["measure"]] for check in self.checks}


def layer_shape(plan: Plan) -> LayerShape:
    """The sizes of one layer as its kernels see them on one rank of this run."""
    shape, train = plan.shape, plan.config.train
    return LayerShape(
        batch=known(train.local_batch_size),
        seq=known(train.seq_len),
        heads=shape.num_heads,
        kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=str(train.dtype),
        dim=shape.hidden,
        ffn=shape.moe_ffn,
        experts=shape.num_experts,
        top_k=shape.top_k,
    )


def run_gate(plan: Plan) -> GateResult:
    """Check each kernel of the plan in a process of its own: on the device where there is one, else simulated."""
    checks: list[dict[str, Any]] = []
    for arguments in gate_arguments(plan.swaps, layer_shape(plan), lnc=plan.lnc):
        try:
            done = subprocess.run(
                [sys.executable, "-m", "kernels", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S
            )
            checks += json.loads(done.stdout)["checks"]
        except subprocess.TimeoutExpired:
            return GateResult(tuple(checks), f"{arguments[1]} took longer than {TIMEOUT_S:.0f} s")
        except (ValueError, KeyError):
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            return GateResult(tuple(checks), last)
    return GateResult(tuple(checks))
