"""Which node this is, how ranks are laid out, and what each node is told (no torch, no Slurm)."""

from __future__ import annotations

import pytest

from harness import nodes, slurm
from harness.mesh import Mesh, plan_mesh
from harness.nodes import Place, find_place, network_environment, rendezvous_options
from harness.paths import load_path
from harness.plan import ConfigError, make_plan
from harness.schema import PilotConfig, PlatformConfig, TrainConfig

TRN2 = PlatformConfig(name="trn2_48xlarge", device="neuron", chip="trn2", num_ranks=64, num_chips=16, lnc=2)
SLURM = {
    "SLURM_JOB_ID": "812",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NODELIST": "trn[9-10]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_NODEID": "0",
    "SLURMD_NODENAME": "trn9",
}


@pytest.fixture(autouse=True)
def every_name_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_known_to_resolver", lambda name: True)
    for name in SLURM:
        monkeypatch.delenv(name, raising=False)


def trn2(**changes: object) -> PlatformConfig:
    from dataclasses import replace

    return replace(TRN2, **changes)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("head", ("head",)),
        ("trn[1-3,7],head", ("trn1", "trn2", "trn3", "trn7", "head")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("a,b[1-2]-x,c", ("a", "b1-x", "b2-x", "c")),
        ("r[1-2]n[3-4]", ("r1n3", "r1n4", "r2n3", "r2n4")),
    ],
)
def test_node_lists(text: str, names: tuple[str, ...]) -> None:
    assert slurm.expand(text) == names


def test_node_list_with_an_open_bracket() -> None:
    with pytest.raises(ValueError, match=r"SLURM_JOB_NODELIST=trn\[1-3: a list like trn\[1-3\],head was expected"):
        slurm.expand("trn[1-3")


def test_slurm_says_which_node_this_is_in_torchruns_own_order() -> None:
    """torchrun sorts addresses as texts: trn10 comes before trn9, whatever SLURM_NODEID says."""
    first = find_place(trn2(num_nodes=2), SLURM | {"SLURM_NODEID": "1", "SLURMD_NODENAME": "trn10"})
    second = find_place(trn2(num_nodes=2), SLURM)
    assert (first.rank, first.names, first.local_addr) == (0, ("trn10", "trn9"), "trn10")
    assert (second.rank, second.names, second.local_addr) == (1, ("trn10", "trn9"), "trn9")
    assert first.rdzv_id == second.rdzv_id == "812.0.0"
    assert find_place(trn2(num_nodes=2), SLURM | {"SLURM_RESTART_COUNT": "2"}).rdzv_id == "812.0.2"


def test_slurms_addresses_where_names_cannot_be_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_known_to_resolver", lambda name: False)
    monkeypatch.setattr(slurm, "node_addresses", lambda names: {"trn9": "10.0.0.1", "trn10": "10.0.0.2"})
    place = find_place(trn2(num_nodes=2), SLURM)
    assert (place.rank, place.names, place.local_addr) == (0, ("trn9", "trn10"), "10.0.0.1")


def test_torchruns_order_is_still_that_of_texts() -> None:
    """The control of the above: if torch orders nodes otherwise one day, node 0 would not have rank 0."""
    dynamic = pytest.importorskip("torch.distributed.elastic.rendezvous.dynamic_rendezvous")
    described = [dynamic._NodeDesc(addr=name, pid=1, local_id=0) for name in ("trn9", "trn10")]
    assert [node.addr for node in sorted(described)] == ["trn10", "trn9"]


def test_a_step_of_another_size_is_refused() -> None:
    with pytest.raises(
        ValueError, match="num_nodes=3, but Slurm job 812 has 2 nodes and this step 2 tasks: one task a"
    ):
        find_place(trn2(num_nodes=3), SLURM)
    with pytest.raises(ValueError, match="has 2 nodes and this step 4 tasks"):
        find_place(trn2(num_nodes=2), SLURM | {"SLURM_STEP_NUM_TASKS": "4"})


def test_given_by_the_user() -> None:
    given = {"num_nodes": 2, "rdzv_endpoint": "trn-0:29400", "rdzv_id": "first"}
    node_0 = find_place(trn2(**given, node_rank=0), {})
    node_1 = find_place(trn2(**given, node_rank=1, local_addr="trn-1"), {})
    assert (node_0.rank, node_0.local_addr, node_0.root_comm) == (0, "trn-0", "trn-0:29401")
    assert (node_1.rank, node_1.local_addr, node_1.rdzv_endpoint) == (1, "trn-1", "trn-0:29400")
    assert (node_0.records, node_1.records) == (True, False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_nodes": 0}, "num_nodes=0: at least 1"),
        ({"node_rank": 1}, "platform.node_rank is for several nodes: say platform.num_nodes=N as well"),
        ({"num_nodes": 2, "node_rank": 2}, "node_rank=2: 0 to 1 was expected"),
        ({"num_nodes": 2, "node_rank": 0}, "rdzv_endpoint=None: HOST:PORT on node 0 was expected"),
        ({"num_nodes": 2, "node_rank": 0, "rdzv_endpoint": "trn-0"}, "rdzv_endpoint=trn-0: HOST:PORT"),
        ({"num_nodes": 2, "node_rank": 0, "rdzv_endpoint": "trn-0:1"}, "rdzv_id=None: a name that is new"),
    ],
)
def test_what_contradicts_itself(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_place(trn2(**given), {})


def test_not_knowing_the_node_matters_only_at_the_start() -> None:
    place = find_place(trn2(num_nodes=2), {})
    assert "which node is this? Submit with hydra/launcher=slurm" in place.unknown
    assert find_place(trn2(), {}).unknown == find_place(trn2(num_nodes=2), SLURM).unknown == ""


def test_torchruns_options_of_each_node() -> None:
    place = Place(
        num_nodes=2, rdzv_id="j.0.0", rdzv_endpoint="a:29400", root_comm="a:29401", local_addr="a", names=("a", "b")
    )
    assert rendezvous_options(place, join_s=600.0) == [
        "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_id=j.0.0", "--rdzv_endpoint=a:29400",
        "--rdzv_conf=is_host=1,join_timeout=600", "--local-addr=a", "--max-restarts=0",
    ]  # fmt: skip
    other = rendezvous_options(place.as_seen_from(1), join_s=600.0)
    assert other[4:6] == ["--rdzv_conf=is_host=0,join_timeout=600", "--local-addr=b"]
    assert rendezvous_options(Place(), join_s=600.0) == ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"]
    assert network_environment("neuron", place) == {
        "FI_PROVIDER": "efa",
        "FI_EFA_USE_DEVICE_RDMA": "1",
        "FI_EFA_FORK_SAFE": "1",
        "NEURON_RT_ROOT_COMM_ID": "a:29401",
    }
    assert network_environment("neuron", Place()) == network_environment("cpu", place) == {}


def plan(**changes: object):
    train = changes.pop("train", TrainConfig())
    return make_plan(PilotConfig(path=load_path("native_4b"), platform=trn2(**changes), train=train))


def test_sixteen_nodes_are_1024_ranks() -> None:
    found = plan(num_nodes=16, price_per_hour=10.0)
    assert (found.ranks, found.local_ranks, found.chips, found.price_per_hour) == (1024, 64, 256, 160.0)
    assert (str(found.mesh), found.config.train.global_batch_size, found.micro_batches) == ("[dp_shard=1024]", 1024, 1)
    assert found.tokens_per_step == 1024 * 4096


def test_where_a_start_took_place_is_not_what_is_measured() -> None:
    from harness.manifest import config_hash

    given = {"rdzv_endpoint": "a:1", "rdzv_id": "x"}
    one, other = plan(num_nodes=2, node_rank=0, **given), plan(num_nodes=2, node_rank=1, **given, local_addr="b")
    assert config_hash(one) == config_hash(other)
    assert config_hash(one) != config_hash(plan())


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], Mesh(dp_shard=128)),
        (
            ["--parallelism.tensor_parallel_degree=4", "--parallelism.data_parallel_shard_degree", "32"],
            Mesh(dp_shard=32, tp=4),
        ),
        (
            ["--parallelism.data_parallel_replicate_degree", "2", "--parallelism.data_parallel_shard_degree=-1"],
            Mesh(dp_shard=64, dp_replicate=2),
        ),
        (["--parallelism.expert_parallel_degree=64"], Mesh(dp_shard=128, ep=64)),
    ],
)
def test_mesh(flags: list[str], expected: Mesh) -> None:
    assert plan_mesh(128, flags) == expected
    assert expected.ranks == 128


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--parallelism.tensor_parallel_degree=4"], r"mesh \[dp_shard=128, tp=4\] has 512 ranks, the job has 128"),
        (["--parallelism.tensor_parallel_degree", "x"], "tensor_parallel_degree x: a whole number of at least 1"),
        (["--parallelism.data_parallel_shard_degree=0"], "0: a whole number of at least 1, or -1, was expected"),
        (["--parallelism.expert_parallel_degree=3"], "ep=3 does not divide the 128 ranks"),
    ],
)
def test_meshes_that_do_not_fit(flags: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_mesh(128, flags)
    with pytest.raises(ConfigError, match=f"train.flags: .*{message}"):
        plan(num_nodes=2, train=TrainConfig(flags=flags))


def test_a_global_batch_that_the_nodes_cannot_share() -> None:
    with pytest.raises(ConfigError, match="global_batch_size=64 is no multiple of 1 sequences x 128 ranks: try 128"):
        plan(num_nodes=2, train=TrainConfig(global_batch_size=64))


STATES = {
    "JobId=12 JobState=NODE_FAIL Reason=NodeDown NodeList=n[1-2] BatchHost=n1": ("NODE_FAIL", ("n1", "n2"), True),
    "JobId=12 JobState=RUNNING Reason=None NodeList=n1": ("RUNNING", ("n1",), False),
    "JobId=12 JobState=PENDING Reason=Priority NodeList=(null)": ("PENDING", (), False),
    "slurm_load_jobs error: Invalid job id specified": ("COMPLETED", (), True),
}


@pytest.mark.parametrize(("output", "expected"), STATES.items(), ids=range(len(STATES)))
def test_job_states(output: str, expected: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "ask", lambda *command, errors=False: output)
    state = slurm.job_state("12")
    assert state is not None
    assert (state.state, state.nodes, state.ended) == expected


@pytest.mark.parametrize(
    "answer", [None, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"]
)
def test_a_slurm_that_does_not_answer_is_no_job_that_is_gone(
    answer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "ask", lambda *command, errors=False: answer)
    assert slurm.job_state("12") is None


def test_bad_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    output = (
        "NodeName=n1 Arch=x86_64 CPUAlloc=2 State=ALLOCATED ThreadsPerCore=1\n"
        "NodeName=n2 Arch=x86_64 State=DOWN* ThreadsPerCore=1\n"
        "NodeName=n3 Arch=x86_64 State=IDLE+DRAIN ThreadsPerCore=1\n"
        "NodeName=n4 Arch=x86_64 State=ALLOCATED+NOT_RESPONDING ThreadsPerCore=1\n"
    )
    monkeypatch.setattr(slurm, "ask", lambda *command, errors=False: output)
    assert slurm.bad_nodes(["n1", "n2", "n3", "n4"]) == {"n2": "DOWN*", "n4": "ALLOCATED+NOT_RESPONDING"}


def test_the_dry_run_of_sixteen_trainium_nodes() -> None:
    from tests.conftest import call

    called = call("harness", "+path=native_4b", "platform=trn2_48xlarge", "platform.num_nodes=16", "dry_run=true")
    assert called.exit_code == 0, called.stderr
    lines = [line.strip() for line in called.stdout.splitlines()]
    assert sum("torchrun" in line for line in lines) == 16
    assert [line for line in lines if line.startswith("command of")] == [
        f"command of node {rank} (NODE{rank})" for rank in range(16)
    ]
    assert [line for line in lines if "--local-addr" in line] == [f"--local-addr=NODE{rank} \\" for rank in range(16)]
    assert sum(line == "--nnodes=16 \\" for line in lines) == 16
    assert sum("is_host=1" in line for line in lines) == 1
    assert {"FI_PROVIDER=efa", "FI_EFA_FORK_SAFE=1", "NEURON_RT_ROOT_COMM_ID=NODE0:29401"} <= set(lines)
    (layout,) = [line for line in lines if line.startswith("ok       layout")]
    assert "16 nodes x 64 = 1,024 ranks on 256 chips, LNC 2; mesh [dp_shard=1024]; global batch 1024" in layout
    started = call("harness", "+path=native_4b", "platform=trn2_48xlarge", "platform.num_nodes=16")
    assert started.exit_code == 2
    assert "platform.num_nodes=16: which node is this? Submit with hydra/launcher=slurm" in started.stderr
