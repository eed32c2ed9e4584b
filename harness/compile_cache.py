"""Whether a run found its compiled code in a cache: files of the cache directory before and after.

TorchNeuron keeps its NEFFs in ``TORCH_NEURONX_NEFF_CACHE_DIR`` (default ``/tmp/neff_cache``, ``ab/cd/<key>.neff``; from
its own list of environment variables), torch.compile its graphs in ``TORCHINDUCTOR_CACHE_DIR`` (default
``<tmp>/torchinductor_<user>``, below ``fxgraph``). By default neither says in the log whether it was used.
"""

from __future__ import annotations

import getpass
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

COLD, WARM, PARTLY = "cold", "warm", "partly warm"


def count_compiled(device: str, env: Mapping[str, str]) -> int | None:
    """Compiled programs in the cache of ``device`` (neuron, cuda, cpu) for a training with ``env``.

    0 where the cache does not exist yet; None where it is switched off or cannot be read.
    """
    if device == "neuron":
        if env.get("TORCH_NEURONX_NEFF_DISABLE_CACHE", "") not in ("", "0"):
            return None
        return _count(Path(env.get("TORCH_NEURONX_NEFF_CACHE_DIR") or "/tmp/neff_cache"), "*.neff")
    if env.get("TORCHINDUCTOR_FX_GRAPH_CACHE") == "0" or env.get("TORCHINDUCTOR_FORCE_DISABLE_CACHES") == "1":
        return None
    try:
        default = f"torchinductor_{re.sub('[^a-zA-Z0-9_.-]', '_', getpass.getuser())}"
    except (KeyError, OSError):  # a container's user without a name
        return None
    return _count(Path(env.get("TORCHINDUCTOR_CACHE_DIR") or Path(tempfile.gettempdir()) / default) / "fxgraph", "*")


def cache_state(before: int | None, after: int | None) -> str | None:
    """cold, warm or partly warm, from the counts around a run; None if they do not tell, e.g. nothing was compiled."""
    if before is None or after is None or after == 0:
        return None
    if before == 0:
        return COLD
    return WARM if after <= before else PARTLY


def _count(folder: Path, pattern: str) -> int | None:
    try:
        return sum(1 for path in folder.rglob(pattern) if path.is_file())
    except OSError:
        return None
