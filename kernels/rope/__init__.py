"""Rotary position embedding: NKI kernels (kernel.py), the same in PyTorch (reference.py)."""
