"""summary.json: its keys, the scope of each number, and a reason for each that is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.flops import flops_per_token, transformers_backend_flops
from harness.logs import Event, Row, read_files
from harness.paths import load_path
from harness.phases import PhasesConfig
from harness.run_facts import complete, ranks_of_mesh
from harness.rundir import to_jsonable
from harness.summary import RunFacts, summarize
from tests.phases.test_step_times import rows, start

LOGS = Path(__file__).resolve().parents[3] / "shared" / "logs"
SHAPE = load_path("native_4b").full_shape()
STEPS = [33.0, 1.02, 1.0, 0.99, 1.01, 1.0, 0.98, 1.0, 1.01, 1.0]
FACTS = RunFacts(
    ranks=64,
    chips=16,
    tokens_per_step=64 * 2048,
    seq_len=2048,
    shape=SHAPE,
    device="trn2",
    lnc=2,
    dtype="bfloat16",
    price_per_hour=36.0,
    price_date="2026-11-30",
    wall_s=100.0,
)


def facts(**changes: Any) -> RunFacts:
    return replace(FACTS, **changes)


def summary(**changes: Any) -> dict[str, Any]:
    return summarize(rows(STEPS, loss=6.5, memory_gib=11.2, memory_pct=46.7), [start()], facts(**changes))


def test_a_run_in_numbers() -> None:
    found = summary()
    assert (found["steps"], found["phase"], found["warmup_steps"], found["recompile_steps"]) == (10, "steady", 1, [])
    assert found["compile_s"] == pytest.approx(32.0, abs=0.05)
    steady = found["steady"]
    assert steady["step_s_median"] == pytest.approx(1.0)
    assert steady["tps_per_rank"] == pytest.approx(2048)
    assert steady["tokens_per_s"] == pytest.approx(64 * 2048)
    assert steady["tps_per_chip"] == pytest.approx(4 * 2048)
    assert steady["mfu"] == pytest.approx(100 * 2048 * flops_per_token(SHAPE, 2048).total / 166.75e12)
    assert steady["loss_last"] == 6.5
    end = found["end_to_end"]
    assert end["train_s"] == pytest.approx(sum(STEPS), abs=0.01)
    assert end["tokens_per_s"] == pytest.approx(10 * 64 * 2048 / sum(STEPS), rel=1e-3)
    assert end["tps_per_rank"] == pytest.approx(end["tokens_per_s"] / 64)
    assert found["memory"]["peak_gib"] == 11.2
    assert found["warmup"]["rule"] == "settle"
    assert found["warmup"]["parameters"]["min_steady"] == 6


def test_cost_in_the_users_money() -> None:
    cost = summary()["cost"]
    assert cost["run"] == pytest.approx(1.0)  # 100 s at 36 an hour
    assert cost["per_million_steady_tokens"] == pytest.approx(0.01 / (64 * 2048) * 1e6)
    assert cost["compile_share"] == pytest.approx(0.32, abs=0.001)
    assert (cost["price_date"], cost["paid_from"]) == ("2026-11-30", "launch to end")
    assert summary(wall_s=None)["cost"]["paid_from"] == "first to last step"


def test_no_price_is_invented() -> None:
    found = summary(price_per_hour=None)
    assert found["cost"] is None
    assert "platform.price_per_hour" in found["reasons"]["cost"]


@pytest.mark.parametrize("seq_len", [2048, 4096, 8192])
def test_equal_tokens_per_second_give_equal_mfu_on_both_4b_paths(seq_len: int) -> None:
    peak, tps, found = 158e12, 400.0, {}
    for name, printed in (
        ("native_4b", flops_per_token(SHAPE, seq_len).total),
        ("hf_4b", transformers_backend_flops(SHAPE, seq_len).total),
    ):
        logged = rows(STEPS, tflops=round(printed * tps / 1e12, 2), mfu=round(100 * printed * tps / peak, 2))
        for row, second in zip(logged, STEPS, strict=True):
            row.tps = tps / second
        events = [start(), Event("peak_flops", 10, data={"flops": 1.58e14})]
        run = facts(shape=load_path(name).full_shape(), seq_len=seq_len, tokens_per_step=64 * tps)
        found[name] = summarize(logged, events, run)["steady"]
    assert found["hf_4b"]["mfu"] == found["native_4b"]["mfu"] > 5
    assert found["hf_4b"]["mfu_reported"] < 0.9 * found["native_4b"]["mfu_reported"]
    assert "79 BF16 TFLOPS" in found["native_4b"]["mfu_difference"]
    assert "attention" not in found["native_4b"]["mfu_difference"]


def test_the_transformers_backends_convention_is_named() -> None:
    printed = transformers_backend_flops(SHAPE, 2048).total
    logged = rows(STEPS)
    for row in logged:
        row.tflops = printed * row.tps / 1e12
        row.mfu = 100 * printed * row.tps / 166.75e12
    difference = summarize(logged, [start()], FACTS)["steady"]["mfu_difference"]
    assert "half of the attention term" in difference
    assert "peak" not in difference


def test_an_mfu_above_100_percent_is_refused() -> None:
    found = summary(peak_flops_per_rank=1e13)
    assert found["steady"]["mfu"] is None
    assert found["reasons"]["steady.mfu"].startswith("refused:")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": "cpu"}, "no peak is known for device 'cpu'"),
        ({"lnc": None}, "platform.lnc"),
        ({"shape": None}, "the model's shape"),
        ({"dtype": "float32"}, "not for float32"),
    ],
)
def test_no_mfu_without_its_inputs(changes: dict[str, Any], said: str) -> None:
    found = summary(**changes)
    assert found["steady"]["mfu"] is None
    assert said in found["reasons"]["steady.mfu"]
    assert found["steady"]["tps_per_rank"] == pytest.approx(2048)


def test_three_steps_are_too_short_and_every_gap_has_a_reason() -> None:
    found = summarize(rows(STEPS[:3]), [start()], FACTS)
    assert (found["phase"], found["warmup_steps"], found["compile_s"]) == ("too_short", None, None)
    assert found["end_to_end"]["tokens_per_s"] == pytest.approx(3 * 64 * 2048 / sum(STEPS[:3]), rel=0.01)
    for name in ("warmup_steps", "compile_s", "steady.step_s_median", "steady.tokens_per_s", "steady.mfu"):
        assert "too_short" in found["reasons"][name]
    assert "memory.peak_gib" in found["reasons"]


def test_a_run_that_never_settles_has_no_headline() -> None:
    found = summarize(rows([9.0] + [1.0, 1.3] * 20), [start()], FACTS)
    assert found["phase"] == "no_steady_state"
    assert found["steady"]["step_s_median"] is None
    assert found["steady"]["step_s_mean"] > 1
    assert (found["warmup"]["slow_first_steps"], found["warmup"]["slow_first_s"]) == (1, pytest.approx(9.0))
    assert found["cost"]["run"] == pytest.approx(1.0)
    assert "two levels" in found["reasons"]["steady.tokens_per_s"]


def test_an_empty_log() -> None:
    found = summarize([], [], None)
    assert (found["steps"], found["phase"], found["segments"]) == (0, "too_short", [])
    assert {"steady.mfu", "cost", "end_to_end.train_s", "memory.peak_gib", "host"} <= set(found["reasons"])


def test_a_foreign_log_without_times_has_throughput_but_no_seconds() -> None:
    found = summarize(rows(STEPS, clock=False), [], None)
    assert (found["phase"], found["warmup_steps"]) == ("steady", 1)
    assert found["steady"]["tps_per_rank"] == pytest.approx(2048)
    assert found["steady"]["step_s_median"] is None
    assert "steps have no length" in found["reasons"]["compile_s"]
    assert "the number of ranks" in found["reasons"]["steady.tokens_per_s"]


def test_checkpoints_are_attributed() -> None:
    steps = [9.0] + [1.0, 1.01, 0.99] * 10
    steps[15] = 4.0
    found = summarize(rows(steps), [start(), Event("checkpoint_saved", 245, data={"seconds": 3.0})], FACTS)
    assert [(slow["step"], slow["cause"]) for slow in found["slow_steps"]] == [(16, "checkpoint")]
    assert found["recompile_steps"] == []
    assert found["compile_s"] == pytest.approx(8.0, abs=0.05)


def test_every_segment_is_listed_and_the_longest_measured() -> None:
    second = [Row("train", 1, row.step, tps=row.tps, time=row.time, line=row.line + 500) for row in rows([5.0, 1.0])]
    found = summarize([*rows(STEPS), *second], [start()], FACTS)
    assert (found["segment"], found["steps"]) == (0, 10)
    assert [(part["segment"], part["last_step"], part["phase"]) for part in found["segments"]] == [
        (0, 10, "steady"),
        (1, 2, "too_short"),
    ]


def test_memory_of_allocator_device_and_host_are_different_metrics() -> None:
    neuron = {"kind": "neuron", "neuron": {"hbm_gib": {"sum": 600.0, "max": 19.5}, "code_gib": {"max": 3.0}}}
    host = [{"kind": "host", "ranks": {"rss_gib": value, "rss_largest_gib": 2.0}} for value in (90.0, 120.0, 80.0)]
    memory = summarize(rows(STEPS, memory_gib=11.2), [start()], FACTS, [neuron, *host])["memory"]
    assert memory["peak_gib"] == 11.2
    assert memory["device"] == {
        "source": "neuron-monitor",
        "core_hbm_gib": 19.5,
        "core_tensors_gib": None,
        "core_code_gib": 3.0,
        "core_scratchpad_gib": None,
        "core_constants_gib": None,
        "core_runtime_gib": None,
        "all_gib": 600.0,
    }
    assert (memory["ranks_rss_gib"], memory["rank_rss_gib"]) == (120.0, 2.0)
    gpu = {"kind": "nvidia", "nvidia": {"memory_used_gib": {"max": 71.0}}}
    assert summarize(rows(STEPS), [], FACTS, [gpu])["memory"]["device"] == {"source": "nvidia-smi", "gpu_gib": 71.0}


def test_a_disturbed_host_is_in_the_summary() -> None:
    sample = {
        "kind": "host",
        "host": {"cores": 2, "cpu_pct": 99.0},
        "others": {"cores": 0.9},
        "harness": {"cores": 0.02},
    }
    host = summarize(rows(STEPS), [], FACTS, [sample] * 5)["host"]
    assert host["others_cores_mean"] == 0.9
    assert "0.9 of 2 cores" in host["contention"][0]


def test_a_rehearsal_reports_no_mfu_of_a_device_it_does_not_have() -> None:
    found = summarize(rows(STEPS, mfu=0.0), [], facts(device="cpu", dtype="float32", lnc=None, rehearsal=True))
    assert found["rehearsal"] is True
    assert (found["steady"]["mfu"], found["steady"]["mfu_reported"]) == (None, None)


def test_the_simple_rule_can_be_chosen() -> None:
    found = summary(phases=PhasesConfig(rule="skip_first", skip=3))
    assert (found["warmup_steps"], found["warmup"]["rule"]) == (3, "skip_first")


def test_the_summary_is_plain_json() -> None:
    for found in (summary(), summarize([], [], None), summarize(rows([1.0] * 8, loss=float("nan")), [], None)):
        json.dumps(to_jsonable(found), allow_nan=False)


# -- facts from a log -------------------------------------------------------------------------------------------------


def test_facts_that_the_log_tells() -> None:
    events = [
        Event("mesh", 1, data={"parallelism": "pp=1, dp_replicate=2, dp_shard=4, cp=1, tp=2, ep=4"}),
        Event("device_capacity", 2, data={"device_type": "CUDA", "device": "NVIDIA H100 80GB HBM3", "gib": 79.1}),
        Event("trainer", 3, data={"local_batch": 1, "global_batch": 16, "sequence_length": 8192}),
        Event("neff_cached", 4, data={"path": "/x"}),
    ]
    found = complete(RunFacts(), events)
    assert (found.ranks, found.tokens_per_step, found.seq_len) == (16, 16 * 8192, 8192)
    assert (found.device, found.compile_cache) == ("NVIDIA H100 80GB HBM3", "warm")
    assert found.tokens_per_rank_step == 8192
    given = complete(RunFacts(ranks=4, tokens_per_step=99, device="trn2", compile_cache="cold"), events)
    assert (given.ranks, given.tokens_per_step, given.device, given.compile_cache) == (4, 99, "trn2", "cold")


@pytest.mark.parametrize(
    ("mesh", "ranks"),
    [
        ({"parallelism": "pp=2, dp_replicate=1, dp_shard=2, cp=1, tp=2"}, 8),
        ({"parallelism": "pp=1, dp_replicate=1, dp_shard=-1, cp=1, tp=1"}, None),
        ({"dimensions": "2", "names": "'dp_shard', 'tp'", "sizes": "4, 2"}, 8),
        ({}, None),
    ],
)
def test_ranks_of_a_mesh(mesh: dict[str, object], ranks: int | None) -> None:
    assert ranks_of_mesh(mesh) == ranks


# -- real logs --------------------------------------------------------------------------------------------------------


def of_log(name: str) -> dict[str, Any]:
    if not LOGS.exists():
        pytest.skip("the shared folder of logs is not here")
    records = list(read_files([LOGS / name]))
    found = [record for record in records if isinstance(record, Row)]
    return summarize(found, [record for record in records if isinstance(record, Event)])


def test_a_log_of_every_second_step_and_a_slow_first_one() -> None:
    found = of_log("ptitan-commit-19.log")  # 2 x T4, 50 steps, every one logged
    assert (found["phase"], found["warmup_steps"], found["steps"]) == ("steady", 1, 50)
    assert found["steady"]["tps_per_rank"] == pytest.approx(7292, abs=30)
    assert found["step_times"]["tokens_source"] == "given"
    assert found["compile_s"] == pytest.approx(1.99 - 1.12, abs=0.02)


def test_compilation_in_the_first_two_lines_of_a_log_of_every_tenth_step() -> None:
    found = of_log("ptitan-commit-11.log")
    assert (found["phase"], found["warmup_steps"]) == ("steady", 10)
    causes = {slow["step"]: slow["cause"] for slow in found["slow_steps"]}
    assert causes[110] == "profiler"


def test_a_run_that_is_still_getting_faster_at_its_tenth_step() -> None:
    found = of_log("ptitan-autoresearch-01.log")
    assert found["phase"] == "no_steady_state"
    assert "drift of -6" in found["phase_reason"]


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.glob("*.log")) if LOGS.exists() else ["absent"])
def test_any_log_can_be_summarised(name: str) -> None:
    json.dumps(to_jsonable(of_log(name)), allow_nan=False)
