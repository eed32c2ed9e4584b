"""NKI kernels, their references, custom ops and torchtitan overrides."""
