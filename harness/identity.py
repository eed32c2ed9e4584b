"""Is the model that will be built the model that the path promises? Answered before anything is started (no torch).

Three numbers have to agree: what the configuration function builds (on the meta device, in a process of its own), what
arithmetic makes of the published values, and what the path's file promises in so many words.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.paths import PathConfig, Promise
from harness.shapes import ModelShape
from harness.titan.spec import TitanSpec

BUILD_TIMEOUT_S = 120.0
"""A build takes 5 s, almost all of it imports; a cold file system may take many times that."""
_SHAPE_NAMES = tuple(f.name for f in dataclasses.fields(ModelShape) if f.name != "max_positions")
_WIDTHS = ("hidden", "total_params", "active_params")
"""What a rehearsal narrows; the rest of a promise holds at every scale."""
_COUNTS, _NO_PARAMETERS = ("total_params", "active_params"), {"rope_theta", "norm_eps"}
"""What follows from the shape, and fields from which none of it follows."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The model that a spec builds."""

    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool
    num_experts: int
    top_k: int
    moe_ffn: int
    rope_theta: float
    norm_eps: float
    total_params: int
    """Every parameter once, a tied embedding included."""
    active_params: int
    torch: str
    torchtitan: str


@dataclass(frozen=True, kw_only=True)
class IdentityCheck:
    """Verdict on a spec before launch; ``identity`` is None where nothing could be built."""

    verdict: str
    """pass, fail or skipped."""
    reason: str
    """One line for a person."""
    identity: Identity | None = None
    mismatches: tuple[str, ...] = ()
    """Every difference, each as "name is X, promised Y"."""


def check_identity(
    spec: TitanSpec, path: PathConfig, *, adopted: Mapping[str, object] | None = None, python: str = sys.executable
) -> IdentityCheck:
    """Build the spec's model on the meta device and compare it with the path.

    A promise that contradicts the path's own published values fails even where torch is not installed.

    Args:
        adopted: fields of ModelShape that the weights' config.json decides instead of the path, with their values. They
            are part of ``spec.shape``, which is compared in full, and no longer of the promise; the reason says so.
        python: interpreter that has torch and torchtitan.
    """
    if wrong := promise_mismatches(path):
        return _failed(path, wrong)
    if missing := _missing_packages(python):
        return IdentityCheck(verdict="skipped", reason=f"not computed: {missing} is not installed")
    try:
        identity = build_identity(spec, python=python)
    except ValueError as error:
        return IdentityCheck(verdict="fail", reason=str(error))
    wrong = mismatches(identity, spec.shape, path, adopted=adopted or {})
    if wrong:
        return _failed(path, wrong, identity)
    full = path.full_shape()
    changes = [f"{name} {value} (path: {getattr(full, name)})" for name, value in (adopted or {}).items()]
    other = f"; not the path's promise, adopted from the weights' config.json: {', '.join(changes)}" if changes else ""
    return IdentityCheck(verdict="pass", reason=describe(identity) + other, identity=identity)


def promise_mismatches(path: PathConfig) -> tuple[str, ...]:
    """Where the path's promise and arithmetic on its published values disagree; empty if nowhere."""
    shape = path.full_shape()
    computed = {name: getattr(shape, name) for name in _SHAPE_NAMES} | _counts(shape)
    return _against_promise(computed, path.promise, _promised_names())


def mismatches(
    identity: Identity, wanted: ModelShape, path: PathConfig, *, adopted: Collection[str] = ()
) -> tuple[str, ...]:
    """How a build differs from the shape asked for and from the promise (its widths only where ``wanted`` is full).

    Fields that were ``adopted`` are held against ``wanted`` only, and so are the counts that follow from them.
    """
    built = dataclasses.asdict(identity)
    expected = {name: getattr(wanted, name) for name in _SHAPE_NAMES} | _counts(wanted)
    asked = tuple(
        f"{name} is {_number(built[name])}, expected {_number(value)}"
        for name, value in expected.items()
        if built[name] != value
    )
    full = path.full_shape()
    full_scale = dataclasses.replace(wanted, **{name: getattr(full, name) for name in adopted}) == full
    names = [name for name in _promised_names() if full_scale or name not in _WIDTHS]
    free = {*adopted, *(() if set(adopted) <= _NO_PARAMETERS else _COUNTS)}
    names = [name for name in names if name not in free]
    shallower = wanted.num_layers < path.promise.num_layers and not full_scale  # a test's scale.num_layers
    promised = _against_promise(built, path.promise, [name for name in names if not shallower or name != "num_layers"])
    return asked + promised


def build_identity(spec: TitanSpec, *, python: str = sys.executable) -> Identity:
    """Run ``python -m harness.titan.identity`` on the spec.

    Raises:
        ValueError: nothing was built; the message is the builder's last line.
    """
    root = Path(__file__).resolve().parent.parent
    search = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory(prefix="pilot-identity-") as folder:
        file = Path(folder) / "spec.json"
        file.write_text(spec.to_json(), encoding="utf-8")
        command = [python, "-m", "harness.titan.identity", str(file)]
        environment = os.environ | {"PYTHONPATH": search, "PILOT_CACHE": folder, "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=BUILD_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"the model of path {spec.path} was not built within {BUILD_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ValueError(f"the model of path {spec.path} could not be built: {last}")
    return Identity(**json.loads(done.stdout.strip().splitlines()[-1]))


def describe(identity: Identity) -> str:
    """One line: layers, width, experts and parameters."""
    experts = f", {identity.num_experts} experts top {identity.top_k}" if identity.num_experts else ""
    active = f", {identity.active_params:,} active" if identity.num_experts else ""
    return (
        f"{identity.num_layers} layers, hidden {identity.hidden}{experts}, {identity.total_params:,} parameters{active}"
    )


def _failed(path: PathConfig, wrong: tuple[str, ...], identity: Identity | None = None) -> IdentityCheck:
    reason = f"path {path.name} would train another model than it says: {'; '.join(wrong)}"
    return IdentityCheck(verdict="fail", reason=reason, identity=identity, mismatches=wrong)


def _promised_names() -> list[str]:
    return [f.name for f in dataclasses.fields(Promise)]


def _against_promise(values: dict[str, object], promise: Promise, names: list[str]) -> tuple[str, ...]:
    return tuple(
        f"{name} is {_number(values[name])}, promised {_number(getattr(promise, name))}"
        for name in names
        if values[name] != getattr(promise, name)
    )


def _counts(shape: ModelShape) -> dict[str, int]:
    return {"total_params": shape.num_params(), "active_params": shape.num_params(active_only=True)}


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _missing_packages(python: str) -> str | None:
    """First of the packages that a build needs and this interpreter lacks; another interpreter is taken at its word."""
    if python != sys.executable:
        return None
    return next((name for name in ("torch", "torchtitan", "transformers") if not importlib.util.find_spec(name)), None)
