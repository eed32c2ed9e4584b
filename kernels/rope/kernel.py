"""Rotary position embedding in NKI, forward and backward.

Layout is Hugging Face's: query and key ``[batch, heads, seq, head_dim]`` with their own numbers of heads, and a packed
cache ``[1 or batch, at least seq, 2 * head_dim]``, cosines first. Positions are the rows of the cache in order, so
there is no gather. All arithmetic is float32; the only rounding is into the output.

With x1, x2 the halves of a head, and likewise for cosine and sine:

    forward   y1 = x1 cos1 - x2 sin1     y2 = x2 cos2 + x1 sin2
    backward  d1 = g1 cos1 + g2 sin2     d2 = g2 cos2 - g1 sin1     (the transpose; no symmetry of the cache assumed)

Each core takes one contiguous part of the sequence. Within a step, a partition holds ``count`` neighbouring rows, so
that it reads and writes them as one contiguous run of HBM. Outputs are given by the caller and returned.
"""

import nki
import nki.isa as nisa
import nki.language as nl

TILES_PER_STEP = 8
"""Rows per partition and step. 8 x 128 float32 are 4 KiB of a partition's 192 KiB, for each of six tiles."""


@nki.jit
def rope_forward(query, key, cache, query_out, key_out):
    """Rotate query and key by the angles in ``cache``."""
    _for_every_tile(query, key, cache, query_out, key_out, backward=False)
    return query_out, key_out


@nki.jit
def rope_backward(query_grad, key_grad, cache, query_out, key_out):
    """Rotate the gradients back: the transpose of :func:`rope_forward`."""
    _for_every_tile(query_grad, key_grad, cache, query_out, key_out, backward=True)
    return query_out, key_out


def _for_every_tile(query, key, cache, query_out, key_out, backward):
    cores = nl.num_programs(axes=0)
    core = nl.program_id(axis=0)
    batch, _, seq, dim = query.shape
    cache_rows, cache_seq, cache_dim = cache.shape
    rows = nl.tile_size.pmax
    assert seq % (rows * cores) == 0, "seq is a multiple of 128 x LNC"
    assert key.shape[0] == batch
    assert key.shape[2] == seq
    assert key.shape[3] == dim
    assert dim % 2 == 0
    assert cache_rows in (1, batch)
    assert cache_seq >= seq
    assert cache_dim == 2 * dim
    tiles = seq // (rows * cores)
    for first in range(0, tiles, TILES_PER_STEP):
        count = min(TILES_PER_STEP, tiles - first)
        start = (core * tiles + first) * rows
        for cache_row in range(cache_rows):
            offset = (cache_row * cache_seq + start) * cache_dim
            cos = _load(cache, offset, cache_dim, count, dim)
            sin = _load(cache, offset + dim, cache_dim, count, dim)
            first_batch = cache_row
            last_batch = cache_row + 1
            if cache_rows == 1:
                last_batch = batch
            for b in range(first_batch, last_batch):
                for h in range(query.shape[1]):
                    _rotate(query, query_out, b, h, start, cos, sin, backward)
                for h in range(key.shape[1]):
                    _rotate(key, key_out, b, h, start, cos, sin, backward)


def _load(source, offset, row_step, count, dim):
    """``count`` neighbouring rows per partition, ``dim`` elements of each, from ``offset``."""
    rows = nl.tile_size.pmax
    tile = nl.ndarray((rows, count, dim), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=_rows(source, offset, row_step, count, dim))
    return tile


def _rows(tensor, offset, row_step, count, dim):
    pattern = [[count * row_step, nl.tile_size.pmax], [row_step, count], [1, dim]]
    return tensor.ap(pattern=pattern, offset=offset)


def _rotate(source, result, b, h, start, cos, sin, backward):
    """Rotate the rows of one head that one step covers."""
    _, heads, seq, dim = source.shape
    rows, count, _ = cos.shape
    half = dim // 2
    offset = ((b * heads + h) * seq + start) * dim
    x = _load(source, offset, dim, count, dim)
    straight = nl.ndarray((rows, count, dim), dtype=nl.float32, buffer=nl.sbuf)
    crossed = nl.ndarray((rows, count, dim), dtype=nl.float32, buffer=nl.sbuf)
    y = nl.ndarray((rows, count, dim), dtype=result.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=straight, data1=x, data2=cos, op=nl.multiply)
    if backward:
        sin_first = sin[:, :, half:dim]
        sin_second = sin[:, :, 0:half]
        op_first = nl.add
        op_second = nl.subtract
    else:
        sin_first = sin[:, :, 0:half]
        sin_second = sin[:, :, half:dim]
        op_first = nl.subtract
        op_second = nl.add
    nisa.tensor_tensor(dst=crossed[:, :, 0:half], data1=x[:, :, half:dim], data2=sin_first, op=nl.multiply)
    nisa.tensor_tensor(dst=crossed[:, :, half:dim], data1=x[:, :, 0:half], data2=sin_second, op=nl.multiply)
    nisa.tensor_tensor(dst=y[:, :, 0:half], data1=straight[:, :, 0:half], data2=crossed[:, :, 0:half], op=op_first)
    nisa.tensor_tensor(
        dst=y[:, :, half:dim], data1=straight[:, :, half:dim], data2=crossed[:, :, half:dim], op=op_second
    )
    nisa.dma_copy(dst=_rows(result, offset, dim, count, dim), src=y)
