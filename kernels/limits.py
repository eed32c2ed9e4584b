"""What the kernels accept, as arithmetic: no torch, no NKI."""

from __future__ import annotations

PARTITIONS = 128
"""Rows of a tile: partitions of SBUF and PSUM on every NeuronCore so far (``nl.tile_size.pmax``)."""


def sequence_multiple(lnc: int) -> int:
    """Tokens that a sequence length must be a multiple of: one tile of 128 rows on each of ``lnc`` cores.

    Raises:
        ValueError: ``lnc`` is neither 1 nor 2.
    """
    if lnc not in (1, 2):
        raise ValueError(f"LNC={lnc}: a logical NeuronCore has 1 or 2 physical cores")
    return PARTITIONS * lnc


def check_sequence_length(seq_len: int, lnc: int) -> None:
    """Refuse a sequence length that the RoPE kernel cannot split over the cores of a logical NeuronCore.

    Raises:
        ValueError: names the nearest lengths that work.
    """
    multiple = sequence_multiple(lnc)
    if seq_len > 0 and seq_len % multiple == 0:
        return
    below = seq_len // multiple * multiple
    nearest = f"{below} or {below + multiple}" if below > 0 else str(multiple)
    raise ValueError(
        f"sequence length {seq_len} does not fit kernel nki_rope: a multiple of 128 x LNC = {multiple} was expected "
        f"(LNC={lnc}); nearest: {nearest}"
    )


def check_head_dim(head_dim: int) -> None:
    """Refuse a head dimension that has no two equal halves.

    Raises:
        ValueError: odd, or not positive.
    """
    if head_dim <= 0 or head_dim % 2:
        raise ValueError(f"head_dim {head_dim} does not fit kernel nki_rope: an even number was expected")
