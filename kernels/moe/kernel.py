"""SwiGLU experts in NKI, dropless: forward, gradient to the hidden layer, to the inputs, and to the weights.

Rows (tokens) are sorted by expert and cut into blocks of at most 128 (blocks.py). A block gathers its rows by number,
multiplies them with the weights of its expert, and scatters the result; the missing rows of a block that is not full
have numbers out of bounds and are skipped, so tails and experts without tokens need no code of their own. Products
accumulate in float32 in PSUM and are rounded once, when they leave it.

Weights are ``[experts, contraction, columns]``: the caller transposes where needed. Blocks alternate between the cores
of a logical NeuronCore; weight gradients, which sum over blocks, are split by columns. So no core ever writes what
another touches, and no barrier is needed. Outputs are given by the caller and returned.
"""

import nki
import nki.isa as nisa
import nki.language as nl

SUM_BYTES = 96 * 1024
"""Of a partition's 192 KiB, for sums of weight gradients that stay on chip across blocks."""


@nki.jit
def experts_up(x, gate_weight, up_weight, rows, expert, gate, up, hidden):
    """``gate = x @ gate_weight``, ``up = x @ up_weight``, ``hidden = silu(gate) * up``, each row by its expert.

    ``x [rows, dim]``; weights ``[experts, dim, ffn]``; outputs ``[rows, ffn]``. The hidden layer is computed from gate
    and up as they are rounded for the backward pass, so that both directions see the same function.
    """
    for block in _own_blocks(rows):
        row = _load_rows_numbers(rows, block)
        who = _load_scalar(expert, block)
        x_t = _gather_transposed(x, row)
        for start, size in _chunks(gate.shape[1], nl.tile_size.gemm_moving_fmax):
            gate_tile = _evict(_product([x_t], [gate_weight], who, start, size), gate.dtype)
            up_tile = _evict(_product([x_t], [up_weight], who, start, size), up.dtype)
            _scatter(gate, row, start, gate_tile)
            _scatter(up, row, start, up_tile)
            silu = _silu(gate_tile)[1]
            hidden_tile = nl.ndarray(silu.shape, dtype=hidden.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=hidden_tile, data1=silu, data2=up_tile, op=nl.multiply)
            _scatter(hidden, row, start, hidden_tile)
    return gate, up, hidden


@nki.jit
def experts_product(x, weight, rows, expert, out):
    """``out = x @ weight``, each row by its expert: ``x [rows, k]``, ``weight [experts, k, n]``, ``out [rows, n]``."""
    for block in _own_blocks(rows):
        row = _load_rows_numbers(rows, block)
        who = _load_scalar(expert, block)
        x_t = _gather_transposed(x, row)
        for start, size in _chunks(out.shape[1], nl.tile_size.gemm_moving_fmax):
            _scatter(out, row, start, _evict(_product([x_t], [weight], who, start, size), out.dtype))
    return out


@nki.jit
def experts_input_grad(gate_grad, up_grad, gate_weight, up_weight, rows, expert, out):
    """``out = gate_grad @ gate_weight + up_grad @ up_weight``, summed in float32 and rounded once.

    Gradients ``[rows, ffn]``; weights ``[experts, ffn, dim]``; ``out [rows, dim]``.
    """
    for block in _own_blocks(rows):
        row = _load_rows_numbers(rows, block)
        who = _load_scalar(expert, block)
        both = [_gather_transposed(gate_grad, row), _gather_transposed(up_grad, row)]
        for start, size in _chunks(out.shape[1], nl.tile_size.gemm_moving_fmax):
            total = _product(both, [gate_weight, up_weight], who, start, size)
            _scatter(out, row, start, _evict(total, out.dtype))
    return out


@nki.jit
def experts_hidden_grad(grad, down_weight, gate, up, rows, expert, gate_grad, up_grad, hidden):
    """Gradients to gate and up, and the hidden layer again, which the gradient of the down weights needs.

    ``grad [rows, dim]``; ``down_weight [experts, dim, ffn]``; the rest ``[rows, ffn]``. With ``s = sigmoid(gate)`` and
    ``h = grad @ down_weight``, which stays float32: ``up_grad = h s gate``, ``gate_grad = h up s (1 + gate (1 - s))``.
    """
    for block in _own_blocks(rows):
        row = _load_rows_numbers(rows, block)
        who = _load_scalar(expert, block)
        grad_t = _gather_transposed(grad, row)
        for start, size in _chunks(gate.shape[1], nl.tile_size.gemm_moving_fmax):
            gate_tile = _gather(gate, row, start, size)
            up_tile = _gather(up, row, start, size)
            h = _product([grad_t], [down_weight], who, start, size)
            sigmoid, silu = _silu(gate_tile)
            result = nl.ndarray(silu.shape, dtype=hidden.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=result, data1=silu, data2=up_tile, op=nl.multiply)
            _scatter(hidden, row, start, result)
            result = nl.ndarray(silu.shape, dtype=up_grad.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=result, data1=silu, data2=h, op=nl.multiply)
            _scatter(up_grad, row, start, result)
            slope = _silu_slope(sigmoid, silu)
            nisa.tensor_tensor(dst=slope, data1=slope, data2=up_tile, op=nl.multiply)
            result = nl.ndarray(silu.shape, dtype=gate_grad.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=result, data1=slope, data2=h, op=nl.multiply)
            _scatter(gate_grad, row, start, result)
    return gate_grad, up_grad, hidden


@nki.jit
def experts_weight_grad(left, right, rows, continues, finished, out):
    """``out[e] = left_e transposed @ right_e`` over the rows of expert e.

    ``left [rows, k]``, ``right [rows, n]``, ``out [experts, k, n]``.

    The sum of an expert stays on chip across its blocks, restarts where ``continues`` is 0, and is written once, in its
    last block; the writes of other blocks go to an expert out of bounds and are skipped. An expert without tokens has
    one block without rows, so its gradient is written too: zeros.
    """
    k, n = left.shape[1], right.shape[1]
    core, cores = nl.program_id(axis=0), nl.num_programs(axes=0)
    first, last = n * core // cores, n * (core + 1) // cores
    if first == last:
        return out
    own = last - first
    tile = nl.tile_size.pmax
    at_once = max(1, SUM_BYTES // (own * 4)) * tile
    for k_start, k_size in _chunks(k, at_once):
        tiles = _chunks(k_size, tile)
        sums = nl.ndarray((tile, len(tiles), own), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=sums, value=0.0)
        for block in range(rows.shape[0]):
            row = _load_rows_numbers(rows, block)
            left_tile = _gather(left, row, k_start, k_size)
            right_tile = _gather(right, row, first, own)
            keep = nl.ndarray((tile, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=keep, src=continues.ap(pattern=[[0, tile], [1, 1]], offset=block))
            who = _load_scalar(finished, block)
            for index in range(len(tiles)):
                start, size = tiles[index]
                for column, width in _chunks(own, nl.tile_size.gemm_moving_fmax):
                    part = nl.ndarray((size, width), dtype=nl.float32, buffer=nl.psum)
                    nisa.nc_matmul(
                        dst=part,
                        stationary=left_tile[:, start : start + size],
                        moving=right_tile[:, column : column + width],
                        accumulate=False,
                    )
                    total = sums[0:size, index, column : column + width]
                    nisa.scalar_tensor_tensor(
                        dst=total, data=total, op0=nl.multiply, operand0=keep[0:size, :], op1=nl.add, operand1=part
                    )
                target = out.ap(
                    pattern=[[n, size], [1, own]],
                    offset=(k_start + start) * n + first,
                    scalar_offset=who,
                    indirect_dim=0,
                )
                nisa.dma_copy(dst=target, src=sums[0:size, index, :], oob_mode=nisa.oob_mode.skip)
    return out


# -- parts --------------------------------------------------------------------------------------------------------


def _own_blocks(rows):
    """The blocks of this core: every second one at LNC=2."""
    return range(nl.program_id(axis=0), rows.shape[0], nl.num_programs(axes=0))


def _chunks(total, size):
    """(start, size) of the parts of ``total``; the last may be smaller."""
    parts = []
    for start in range(0, total, size):
        parts.append((start, min(size, total - start)))
    return parts


def _load_rows_numbers(rows, block):
    """The row numbers of a block, one per partition."""
    count = rows.shape[1]
    row = nl.ndarray((count, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=rows.ap(pattern=[[1, count], [1, 1]], offset=block * count))
    return row


def _load_scalar(values, block):
    """Entry ``block`` of an int32 column as a 1 x 1 tile."""
    value = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=value, src=values.ap(pattern=[[1, 1], [1, 1]], offset=block))
    return value


def _gather(source, row, start, size):
    """Columns ``start : start + size`` of the rows that ``row`` names; zeros for those out of bounds."""
    count = row.shape[0]
    tile = nl.ndarray((count, size), dtype=source.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    view = source.ap(pattern=[[source.shape[1], count], [1, size]], offset=start, vector_offset=row, indirect_dim=0)
    nisa.dma_copy(dst=tile, src=view, oob_mode=nisa.oob_mode.skip)
    return tile


def _scatter(target, row, start, tile):
    """Write a tile to columns from ``start`` of the rows that ``row`` names, except those out of bounds."""
    count, size = tile.shape
    view = target.ap(pattern=[[target.shape[1], count], [1, size]], offset=start, vector_offset=row, indirect_dim=0)
    nisa.dma_copy(dst=view, src=tile, oob_mode=nisa.oob_mode.skip)


def _gather_transposed(source, row):
    """All columns of the rows that ``row`` names, contraction on the partitions: ``[128, columns / 128, rows]``."""
    count = row.shape[0]
    tile = nl.tile_size.pmax
    x = _gather(source, row, 0, source.shape[1])
    parts = _chunks(source.shape[1], tile)
    x_t = nl.ndarray((tile, len(parts), count), dtype=source.dtype, buffer=nl.sbuf)
    for index in range(len(parts)):
        start, size = parts[index]
        turned = nl.ndarray((size, count), dtype=source.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=x[:, start : start + size])
        nisa.tensor_copy(dst=x_t[0:size, index, :], src=turned)
    return x_t


def _product(transposed, weights, who, start, size):
    """Sum over pairs of ``x @ weight[who][:, start : start + size]`` in PSUM, float32."""
    tile = nl.tile_size.pmax
    total = nl.ndarray((transposed[0].shape[2], size), dtype=nl.float32, buffer=nl.psum)
    begun = False
    for pair in range(len(weights)):
        weight = weights[pair]
        columns = weight.shape[2]
        parts = _chunks(weight.shape[1], tile)
        for index in range(len(parts)):
            k_start, k_size = parts[index]
            w = nl.ndarray((k_size, size), dtype=weight.dtype, buffer=nl.sbuf)
            view = weight.ap(
                pattern=[[columns, k_size], [1, size]],
                offset=k_start * columns + start,
                scalar_offset=who,
                indirect_dim=0,
            )
            nisa.dma_copy(dst=w, src=view)
            nisa.nc_matmul(dst=total, stationary=transposed[pair][0:k_size, index, :], moving=w, accumulate=begun)
            begun = True
    return total


def _evict(total, dtype):
    """Round a product out of PSUM."""
    tile = nl.ndarray(total.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=total)
    return tile


def _silu(gate):
    """Sigmoid of a tile and the tile times it, float32."""
    sigmoid = nl.ndarray(gate.shape, dtype=nl.float32, buffer=nl.sbuf)
    silu = nl.ndarray(gate.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=sigmoid, op=nl.sigmoid, data=gate)
    nisa.tensor_tensor(dst=silu, data1=sigmoid, data2=gate, op=nl.multiply)
    return sigmoid, silu


def _silu_slope(sigmoid, silu):
    """Derivative of silu: ``s + silu (1 - s)``, float32."""
    slope = nl.ndarray(sigmoid.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=slope, data=sigmoid, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=1.0)
    nisa.tensor_tensor(dst=slope, data1=slope, data2=silu, op=nl.multiply)
    nisa.tensor_tensor(dst=slope, data1=slope, data2=sigmoid, op=nl.add)
    return slope
