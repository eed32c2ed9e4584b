"""Entry of every rank: ``torchrun ... -m harness.titan --module harness.titan --config native_4b ...``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from harness.launch import join_run
from harness.scrub import scrub_file
from harness.titan import cpu


def main() -> None:
    """Train; an exception reaches torchrun's summary with rank and traceback, but without the secrets in them."""
    join_run()  # before torch, whose import takes seconds
    from torch.distributed.elastic.multiprocessing.errors import record

    try:
        record(train)()
    except Exception:
        if error_file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
            scrub_file(Path(error_file))
        raise


def train() -> None:
    """torchtitan's own main, on CPU too."""
    cpu.install()
    from torchtitan.train import main

    try:
        main()
    finally:
        report_kernels()


def report_kernels() -> None:
    """Let the kernels say how often each one ran; nothing to say where no swap has imported them."""
    if (kernels := sys.modules.get("kernels.ops")) is not None:
        from torchtitan.tools.logging import logger

        kernels.report(logger.info)


if __name__ == "__main__":
    main()
    if cpu.accelerator() is None:
        cpu.leave()
