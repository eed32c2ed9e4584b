"""What runs inside the training process; the only package that imports torchtitan.

``python -m harness.titan`` is the entry for torchrun, ``--module harness.titan --config PATH`` selects a path.
Importing this package alone imports neither torch nor torchtitan: the launcher uses ``spec`` without them.
"""
