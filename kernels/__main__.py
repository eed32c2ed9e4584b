"""``python -m kernels check``."""

import sys

from kernels.check.cli import main

if __name__ == "__main__":
    sys.exit(main())
