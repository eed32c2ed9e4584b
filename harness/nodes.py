"""Which of a job's nodes this is, and how the nodes find each other: from Slurm, or as the user says.

torchrun's c10d rendezvous gives ranks to nodes in the order of their addresses as texts (torch 2.13,
``_DistributedRendezvousOpExecutor``: ``sorted(state.participants)``), whatever node rank it is told. Under Slurm nodes
are therefore numbered in that very order, so that the node of rank 0 is known before anything is started: it records.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness import slurm

if TYPE_CHECKING:
    from harness.schema import PlatformConfig

DEFAULT_PORT = 29400
"""torchrun's own for c10d, shown where the real one is only known at the start."""
EFA = {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1"}
"""Collectives between Trainium nodes go over EFA with RDMA; fork safety for kernels before 5.15.
Source: AWS Neuron documentation, "How to prepare trn1.32xlarge for multi-node execution"
(awsdocs-neuron.readthedocs-hosted.com, frameworks/torch/torch-neuronx/setup-trn1-multi-node-execution) and the EFA
environment of its multi-node tutorials; "nccom-test User Guide" there for NEURON_RT_ROOT_COMM_ID=host:port."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """This node among the nodes of its job."""

    num_nodes: int = 1
    rank: int = 0
    """0 records; the others only launch."""
    names: tuple[str, ...] = ()
    """Of all nodes, by rank, where they are known."""
    rdzv_id: str = ""
    rdzv_endpoint: str = ""
    """HOST:PORT on node 0; empty until node 0 has said it."""
    root_comm: str = ""
    """HOST:PORT on node 0 at which the Neuron runtimes meet; empty until node 0 has said it."""
    local_addr: str = ""
    """By which address the other nodes reach this one."""
    job: slurm.Allocation | None = None
    unknown: str = ""
    """Why it is not known which node this is, which only matters where something is started."""

    @property
    def records(self) -> bool:
        return self.rank == 0

    @property
    def several(self) -> bool:
        return self.num_nodes > 1

    def name_of(self, rank: int) -> str:
        """``node 1 (trn2-7)``."""
        name = self.names[rank] if rank < len(self.names) else ""
        return f"node {rank} ({name})" if name else f"node {rank}"

    def as_seen_from(self, rank: int) -> Place:
        """The same job on another of its nodes, as far as it can be known here."""
        address = self.names[rank] if rank < len(self.names) else f"NODE{rank}"
        return replace(self, rank=rank, local_addr=self.local_addr if rank == self.rank else address)


def find_place(platform: PlatformConfig, env: Mapping[str, str] = os.environ) -> Place:
    """Where this process is; with several nodes and no way to know, a place with names to show only (``unknown``).

    Raises:
        ValueError: what is said contradicts itself or Slurm.
    """
    nodes, job = platform.num_nodes, slurm.allocation(env)
    given = {key: getattr(platform, key) for key in ("node_rank", "rdzv_endpoint", "rdzv_id", "local_addr")}
    if nodes < 1:
        raise ValueError(f"platform.num_nodes={nodes}: at least 1 was expected")
    if nodes == 1:
        if named := [key for key, value in given.items() if value is not None]:
            raise ValueError(f"platform.{named[0]} is for several nodes: say platform.num_nodes=N as well")
        return Place(job=job, names=(job.node,) if job and job.node else ())
    if given["node_rank"] is not None or given["rdzv_endpoint"] is not None:
        return _given(platform, job)
    if job is not None and job.num_tasks > 1:
        return _from_slurm(platform, job)
    return Place(
        num_nodes=nodes,
        names=tuple(f"NODE{rank}" for rank in range(nodes)),
        rdzv_id=platform.rdzv_id or "JOB_ID",
        rdzv_endpoint=f"NODE0:{DEFAULT_PORT}",
        root_comm=f"NODE0:{DEFAULT_PORT + 1}",
        local_addr="NODE0",
        unknown=f"platform.num_nodes={nodes}: which node is this? Submit with hydra/launcher=slurm, start one task a "
        f"node with srun -N{nodes} --ntasks-per-node=1,\n  or on each node type the same command with "
        f"platform.node_rank=0 to {nodes - 1}, platform.rdzv_endpoint=HOST_OF_NODE_0:{DEFAULT_PORT} and "
        "platform.rdzv_id=A_NEW_NAME",
    )


def _given(platform: PlatformConfig, job: slurm.Allocation | None) -> Place:
    rank, endpoint, nodes = platform.node_rank, platform.rdzv_endpoint, platform.num_nodes
    if rank is None or not 0 <= rank < nodes:
        raise ValueError(f"platform.node_rank={rank}: 0 to {nodes - 1} was expected")
    found = re.fullmatch(r"(.+):(\d{1,5})", endpoint or "")
    if found is None:
        raise ValueError(f"platform.rdzv_endpoint={endpoint}: HOST:PORT on node 0 was expected, the same on all nodes")
    if not platform.rdzv_id or not re.fullmatch(r"[\w.+-]{1,100}", platform.rdzv_id):
        raise ValueError(f"platform.rdzv_id={platform.rdzv_id}: a name that is new for each start was expected")
    host, port = found.group(1), int(found.group(2))
    return Place(
        num_nodes=nodes,
        rank=rank,
        rdzv_id=platform.rdzv_id,
        rdzv_endpoint=f"{host}:{port}",
        root_comm=f"{host}:{port + 1}",
        local_addr=platform.local_addr or (host if rank == 0 else socket.getfqdn()),
        job=job,
    )


def _from_slurm(platform: PlatformConfig, job: slurm.Allocation) -> Place:
    nodes = platform.num_nodes
    if len(job.nodes) != nodes or job.num_tasks != nodes:
        raise ValueError(
            f"platform.num_nodes={nodes}, but Slurm job {job.job_id} has {len(job.nodes)} nodes and this step "
            f"{job.num_tasks} tasks: one task a node was expected (srun -N{nodes} --ntasks-per-node=1)"
        )
    addresses = addresses_of(job.nodes)
    order = sorted(job.nodes, key=lambda name: addresses[name])
    return Place(
        num_nodes=nodes,
        rank=order.index(job.node),
        names=tuple(order),
        rdzv_id=platform.rdzv_id or f"{job.job_id}.{job.step_id or 0}.{job.restarts}",
        local_addr=platform.local_addr or addresses[job.node],
        job=job,
    )


def addresses_of(names: Sequence[str]) -> dict[str, str]:
    """The names themselves where all of them can be looked up, else the addresses that Slurm uses."""
    if all(_known_to_resolver(name) for name in names):
        return {name: name for name in names}
    found = slurm.node_addresses(names)
    return {name: found.get(name, name) for name in names}


def _known_to_resolver(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


def with_ports(place: Place) -> Place:
    """Node 0's own choice of free ports, where the user has named none."""
    if place.rdzv_endpoint or not place.several:
        return place
    first, second = free_ports(2)
    host = place.local_addr
    return replace(place, rdzv_endpoint=f"{host}:{first}", root_comm=f"{host}:{second}")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def rendezvous_options(place: Place, *, join_s: float) -> list[str]:
    """torchrun's options for this node; a single node meets nobody."""
    if not place.several:
        return ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"]
    return [
        f"--nnodes={place.num_nodes}",
        "--rdzv_backend=c10d",
        f"--rdzv_id={place.rdzv_id}",
        f"--rdzv_endpoint={place.rdzv_endpoint}",
        f"--rdzv_conf=is_host={int(place.records)},join_timeout={join_s:.0f}",
        f"--local-addr={place.local_addr}",
        "--max-restarts=0",
    ]


def network_environment(device: str, place: Place) -> dict[str, str]:
    """What ranks need to talk to other nodes."""
    if device != "neuron" or not place.several:
        return {}
    return {**EFA, "NEURON_RT_ROOT_COMM_ID": place.root_comm}
