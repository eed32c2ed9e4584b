"""What a spec really builds, without weights: ``python -m harness.titan.identity SPEC.json`` prints one JSON object.

The model is built on the meta device by the very configuration function that training uses. The launcher reads the
result in a process of its own (harness.identity), so that it needs no torch itself.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

from harness.titan import cpu
from harness.titan.spec import SPEC_ENV, TitanSpec


def build_identity(spec_file: Path) -> dict[str, object]:
    """Shape and parameter counts of the model that the spec in ``spec_file`` would train.

    Raises:
        ValueError: the file is no spec, or the library refuses to build the model.
    """
    spec = TitanSpec.from_json(spec_file.read_text(encoding="utf-8"))
    os.environ[SPEC_ENV] = str(spec_file)
    cpu.install()
    import torch
    import torchtitan

    from harness.titan import config_registry, measure

    config = getattr(config_registry, spec.path)()
    config.model_spec.model.update_from_config(config=config)
    with torch.device("meta"):
        model = config.model_spec.model.build()
    built = measure.measure(model)
    shape = {key: value for key, value in dataclasses.asdict(built.shape).items() if key not in measure.NOT_COMPARED}
    return {
        **shape,
        "total_params": built.total_params,
        "active_params": built.active_params,
        "torch": torch.__version__,
        "torchtitan": torchtitan.__version__,
    }


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m harness.titan.identity SPEC.json", file=sys.stderr)
        return 2
    try:
        identity = build_identity(Path(arguments[0]))
    except (OSError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(identity))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
