"""Under which circumstances a run took place: command, versions, code, hardware, environment."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.plan import Plan, package_version
from harness.privacy import redact
from harness.rundir import now, to_jsonable

PACKAGES = (
    "torch",
    "torchtitan",
    "transformers",
    "torch-neuronx",
    "neuronx-cc",
    "nki",
    "tokenizers",
    "datasets",
    "safetensors",
    "mlflow",
    "hydra-core",
    "numpy",
    "pandas",
    "psutil",
)
# What shapes a run from outside; the rest of the environment is nobody's business.
ENVIRONMENT = (
    "OMP_", "MKL_", "TORCH", "PYTORCH", "NEURON", "NCCL", "GLOO", "FI_", "HF_", "CUDA_", "NVIDIA_", "SLURM_", "MLFLOW_",
    "PILOT_", "PYTHON", "TOKENIZERS_", "XLA_", "NKI_", "AWS_", "HYDRA_",
)  # fmt: skip
# Tracked or new files of these shape a run.
CODE = ("harness", "kernels", "conf", "pyproject.toml", "constraints.txt")
# Keys that say where and as which repetition a run took place, not what it is.
NOT_IDENTITY = (
    "runs", "experiment_name", "replicate", "block", "order", "sweep", "tracking", "dry_run", "launch", "sampling",
)  # fmt: skip


def make_manifest(
    plan: Plan, *, run_name: str, command: list[str], env: dict[str, str], argv: list[str]
) -> dict[str, Any]:
    """The manifest as plain data, secrets redacted."""
    recorded = {key: value for key, value in sorted((os.environ | env).items()) if key.startswith(ENVIRONMENT)}
    return redact(
        {
            "created": now(),
            "run_name": run_name,
            "argv": argv,
            "command": command,
            "config_hash": config_hash(plan),
            "sweep": plan.config.sweep,
            "shape": asdict(plan.shape) | {"num_params": plan.shape.num_params()},
            "kernel_backend": kernel_backend(plan),
            "versions": versions(),
            "git": git_state(Path(__file__).resolve().parent.parent),
            "hardware": hardware(plan),
            "environment": recorded,
            "cluster": cluster(plan),
            "init": plan.initial.record(),
        }
    )


def kernel_backend(plan: Plan) -> str:
    """What is asked to execute the kernels; auto is the device's own compiler on Trainium, the reference elsewhere."""
    if not plan.swaps.kernels:
        return "none"
    auto = "neuron" if plan.config.platform.device == "neuron" else "reference"
    return auto if plan.config.kernel.backend == "auto" else plan.config.kernel.backend


def config_hash(plan: Plan) -> str:
    """Hash of all of the configuration that decides what is measured; equal for replicates."""
    config = {key: value for key, value in asdict(plan.config).items() if key not in NOT_IDENTITY}
    text = json.dumps(to_jsonable(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Versions of the packages that matter and are installed, read without importing them."""
    found = {name: package_version(name) for name in PACKAGES}
    return {"python": platform.python_version()} | {name: value for name, value in found.items() if value}


def git_state(directory: Path) -> dict[str, Any]:
    """Commit, whether the code that shapes a run (``CODE``) differs from it, and a hash of what differs; empty outside
    a checkout. Equal commits with equal ``changes`` are equal code. Notes, tests and the analysis shape no run."""
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return {}
    tracked = _git(directory, "diff", "--name-only", "--no-renames", "--relative", "-z", "HEAD", "--", *CODE)
    new = _git(directory, "ls-files", "--others", "--exclude-standard", "-z", "--", *CODE)
    if tracked is None or new is None:
        return {"commit": commit, "dirty": True, "changes": f"unknown at {now()}"}  # equal to no other run's
    names = sorted({name for name in f"{tracked}\0{new}".split("\0") if name})
    return {"commit": commit, "dirty": bool(names), "changes": _hash_files(directory, names) if names else "none"}


def _hash_files(directory: Path, names: list[str]) -> str:
    """Hash of names and contents: unlike a diff's text it does not depend on how git is set up."""
    digest = hashlib.sha256()
    for name in names:
        file = directory / name
        try:
            content = b"link " + os.fsencode(file.readlink()) if file.is_symlink() else b"file " + file.read_bytes()
        except OSError:
            content = b"gone"
        digest.update(f"{name}\0{len(content)}\0".encode(errors="surrogateescape") + content)
    return digest.hexdigest()[:16]


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(directory), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def hardware(plan: Plan) -> dict[str, Any]:
    """The machine as far as it matters for a comparison."""
    import psutil

    nodes = {"nodes": ",".join(plan.place.names)} if plan.place.names and not plan.place.unknown else {}
    return nodes | {
        "hostname": socket.gethostname(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_model(),
        "cpu_count": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "device": plan.config.platform.device,
        "platform": plan.config.platform.name,
        "instance_type": _read("/sys/devices/virtual/dmi/id/product_name"),
        "num_neuron_devices": len(list(Path("/dev").glob("neuron[0-9]*"))),
        "num_cuda_devices": len(list(Path("/dev").glob("nvidia[0-9]*"))),
        "python_executable": Path(sys.executable).name,
    }


def cluster(plan: Plan) -> dict[str, Any]:
    """The nodes and the Slurm job of a run; empty for one machine on its own."""
    place, job = plan.place, plan.place.job
    if job is None and not place.several:
        return {}
    return {
        "num_nodes": place.num_nodes,
        "nodes": list(place.names),
        "slurm_job_id": job.job_id if job else None,
        "rdzv_id": place.rdzv_id or None,
    }


def _cpu_model() -> str:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.lower().startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
