"""Entry of every rank: ``torchrun ... -m harness.titan --module harness.titan --config native_4b ...``."""

from __future__ import annotations

import sys

from torch.distributed.elastic.multiprocessing.errors import record

from harness.titan import cpu


@record
def main() -> None:
    """torchtitan's own main, on CPU too; an exception reaches torchrun's summary with rank and traceback."""
    cpu.install()
    from torchtitan.train import main as train

    try:
        train()
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
