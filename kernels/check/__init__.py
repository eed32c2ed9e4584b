"""Holding kernels against their references: ``python -m kernels check``."""
