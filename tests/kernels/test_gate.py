"""The gate: it passes the kernels as they are, and each planted mistake fails it."""

from __future__ import annotations

import json
import re

import pytest

torch = pytest.importorskip("torch")

from kernels import backend, nki_api  # noqa: E402
from kernels.check import cli, gate  # noqa: E402
from kernels.check.gate import Check, difference  # noqa: E402
from kernels.check.shapes import ExpertShape, RopeShape  # noqa: E402
from kernels.moe import launch as moe  # noqa: E402
from kernels.rope import launch as rotary  # noqa: E402
from kernels.rope import reference  # noqa: E402
from tests.kernels.mutants import plant  # noqa: E402
from tests.kernels.processes import kernels  # noqa: E402

ROPE, EXPERTS = "kernels.rope.kernel", "kernels.moe.kernel"
SHAPES = {
    "nki_rope": RopeShape(batch=2, heads=2, kv_heads=1, seq=512, head_dim=32),
    "nki_moe": ExpertShape(tokens=100, top_k=2, dim=48, ffn=40, experts=4),
}


def failures(kernel: str, dtype: str = "bfloat16", lnc: int = 2) -> set[str]:
    """What fails, of one small shape in the simulator."""
    checks = gate.run(kernel, shapes=[SHAPES[kernel]], dtypes=[dtype], lncs=[lnc], where="simulator")
    return {check.what for check in checks if not check.passed}


@pytest.mark.parametrize("kernel", gate.KERNELS)
@pytest.mark.parametrize("dtype", gate.DTYPES)
@pytest.mark.parametrize("lnc", [1, 2])
def test_the_kernels_as_they_are_pass(kernel: str, dtype: str, lnc: int) -> None:
    assert failures(kernel, dtype, lnc) == set()


BOTH = {"forward query", "forward key", "grad query", "grad key"}
FORWARD, BACKWARD = {"forward query", "forward key"}, {"grad query", "grad key"}
WEIGHTS = {"grad w1", "grad w2", "grad w3"}
MISTAKES = {
    "backward with the forward rotation": (ROPE, "backward=True", "backward=False", BACKWARD),
    "swapped halves": (ROPE, "data1=x[:, :, half:dim], data2=sin", "data1=x[:, :, 0:half], data2=sin", BOTH),
    "sine of the other half": (ROPE, "sin_first = sin[:, :, 0:half]", "sin_first = sin[:, :, half:dim]", FORWARD),
    "wrong sign": (ROPE, "op_second = nl.subtract", "op_second = nl.add", BACKWARD),
    "cache off by one position": (ROPE, "(cache_row * cache_seq + start)", "(cache_row * cache_seq + start + 1)", BOTH),
    "last tile skipped": (ROPE, "tiles - first)", "tiles - first - 1)", BOTH),
    "last head skipped": (ROPE, "range(query.shape[1])", "range(query.shape[1] - 1)", {"forward query", "grad query"}),
    "rounded in between": (ROPE, "dtype=nl.float32, buffer=nl.sbuf", "dtype=x.dtype, buffer=nl.sbuf", BOTH),
    "both cores at the same part": (ROPE, "core * tiles + first", "first", {"runs"}),
    "expert off by one": (
        EXPERTS, "offset=k_start * columns + start,", "offset=(k_start + weight.shape[1]) * columns + start,", {"runs"},
    ),
    "expert of the block before": (EXPERTS, "values.ap(pattern=[[1, 1], [1, 1]], offset=block)",
                                   "values.ap(pattern=[[1, 1], [1, 1]], offset=max(block - 1, 0))",
                                   {"forward", "grad x", *WEIGHTS}),
    "last blocks skipped": (EXPERTS, "rows.shape[0], nl", "rows.shape[0] - 4, nl", {"forward", "grad x"}),
    "sums that never restart": (EXPERTS, "op0=nl.multiply, operand0=keep[0:size, :]",
                                "op0=nl.maximum, operand0=-1e30", WEIGHTS),
    "tail of the contraction left out": (EXPERTS, "parts = _chunks(weight.shape[1], tile)",
                                         "parts = _chunks(weight.shape[1] - 8, tile)", {"forward", "grad x", *WEIGHTS}),
    "slope of silu without its second term": (EXPERTS, "data1=slope, data2=sigmoid, op=nl.add",
                                              "data1=sigmoid, data2=sigmoid, op=nl.maximum", {"grad x", "grad w1"}),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_fails(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, right, wrong, expected = MISTAKES[mistake]
    plant(monkeypatch, module, right, wrong)
    found = failures("nki_rope" if module == ROPE else "nki_moe")
    assert found >= expected, found


def test_a_kernel_that_is_never_called_fails_though_its_numbers_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent fallback: the reference answers in place of the kernel, which still counts as a call."""

    def fallback(direction, query, key, cache):
        rotate = reference.rotate if direction == "forward" else reference.rotate_back
        return rotate(query, cache), rotate(key, cache)

    monkeypatch.setattr(rotary, "_run_kernel", fallback)
    assert failures("nki_rope") == {"calls missing"}


def test_an_op_that_counts_no_call_fails_though_its_numbers_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for launch, name in ((rotary, "nki_rope"), (moe, "nki_moe")):
        monkeypatch.setattr(launch.backend, "count", lambda *call: None)
        assert failures(name) == {"calls missing"}


def test_an_output_that_nobody_wrote_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nki_api, "launch", lambda kernel, *tensors: tensors[-2:])
    with backend.isolated("simulator", lnc=1):
        out = rotary.forward(torch.randn(1, 128, 1, 8), torch.randn(1, 128, 1, 8), torch.randn(128, 16))
    assert out[0].isnan().all()


def test_nan_and_infinity_never_pass() -> None:
    for value in (float("nan"), float("inf")):
        for other in (2.0, value):
            absolute, relative = difference(torch.tensor([1.0, value]), torch.tensor([1.0, other]))
            assert not absolute <= 1e30
            assert not relative <= 1e30
    assert difference(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 4.0])) == (1.0, 0.25)
    assert difference(torch.tensor([1.0]), torch.tensor([1.0])) == (0.0, 0.0)


def test_reasons_are_given_for_what_did_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, ROPE, "core * tiles + first", "first")
    checks = gate.run("nki_rope", shapes=[SHAPES["nki_rope"]], dtypes=["float32"], lncs=[2], where="simulator")
    assert [check.what for check in checks] == ["runs"]
    assert re.fullmatch(
        r"RaceError: nisa.dma_copy: core (\d) writes HBM that core (?!\1)\d touches, with no barrier between",
        checks[0].reason,
    )


# -- the command line ---------------------------------------------------------------------------------------------

SMALL = ("--shape", "batch=1,heads=1,kv_heads=1,seq=256,head_dim=16", "--lnc", "2")


def test_the_command_prints_a_table_and_ends_with_0() -> None:
    done = kernels("check", "nki_rope", *SMALL, "--seed", "3")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["kernel", "what", "dtype", "lnc", "max", "abs", "max", "rel", "tolerance", "shape"]
    assert len([line for line in lines if line.startswith("nki_rope")]) == 2 * 5
    assert lines[-1] == "all within tolerance; backend simulator, seed 3"


def test_the_command_gives_json_whose_differences_a_tracker_can_take() -> None:
    done = kernels("check", "nki_rope", *SMALL, "--dtype", "float32", "--json")
    result = json.loads(done.stdout)
    assert result["passed"] is True
    assert {check["metric"]: check["max_abs"] for check in result["checks"]} == {
        f"kernel_check/nki_rope/{what}/float32/lnc2/max_abs": 0.0
        for what in ("forward_query", "grad_query", "forward_key", "grad_key", "calls_missing")
    }
    assert {check["backend"] for check in result["checks"]} == {"simulator"}


def test_the_reference_backend_can_be_checked_too() -> None:
    done = kernels("check", "nki_moe", "--shape", "tokens=32,top_k=2,dim=16,ffn=8,experts=4", "--backend", "reference")
    assert done.returncode == 0, done.stdout
    assert "backend reference" in done.stdout


def test_a_miss_ends_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plant(monkeypatch, ROPE, "backward=True", "backward=False")
    assert cli.main(["check", "nki_rope", *SMALL, "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["passed"] is False
    assert {check["what"] for check in result["checks"] if not check["passed"]} == BACKWARD
    assert cli.main(["check", "nki_rope", *SMALL]) == 1
    assert "4 of 10 outside tolerance" in capsys.readouterr().out


def test_json_has_no_nan() -> None:
    check = Check(
        kernel="k", what="forward", dtype="float32", lnc=1, backend="simulator", shape="", max_abs=float("nan"),
        max_rel=float("inf"), measure="max_abs", tolerance=0.0, reason="",
    )  # fmt: skip
    values = json.loads(json.dumps(cli.as_json(check), allow_nan=False))
    assert (values["max_abs"], values["max_rel"], values["passed"]) == ("nan", "inf", False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nki_attention"], "kernel 'nki_attention': one of nki_rope, nki_moe was expected"),
        (["--dtype", "float64"], "dtype 'float64': one of float32, bfloat16 was expected"),
        (["--lnc", "4"], "lnc '4': one of 1, 2 was expected"),
        (["--backend", "gpu"], "backend 'gpu': one of auto, reference, simulator, neuron was expected"),
        (["--backend", "neuron"], "kernel backend neuron is not available: import torch_neuronx fails"),
        (["--shape", "seq=512"], "--shape belongs to one kernel"),
        (["nki_rope", "--shape", "seq"], "shape 'seq': 'seq' is not understood; write e.g. batch=1,"),
        (["nki_rope", "--shape", "tokens=4"], "'tokens=4' is not understood"),
        (["nki_moe", "--shape", "experts=2,top_k=4"], "top_k=4 of experts=2: at most as many as there are"),
        (
            ["nki_rope", "--shape", "seq=200"],
            "sequence length 200 does not fit kernel nki_rope: a multiple of 128 x LNC",
        ),
    ],
)
def test_wrong_usage_is_one_line_and_ends_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
