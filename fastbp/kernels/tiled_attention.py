"""The Numba kernels of `tiled_attention` and `tiled_attention_dropout`; fastbp/ops/tiled_attention.py and
fastbp/ops/tiled_attention_dropout.py tell the maths and its traps.

`drop` is None without dropout: what depends on it is then left out as the kernel is compiled. `row` is a head's first
row of M.
"""

from __future__ import annotations

import numpy as np

from fastbp.simd.abi import cast, dim, inline, itemsize, span
from fastbp.simd.attention import BLOCK_VECTORS, lanes, multiply, slope, strip_product, take_peak, weigh
from fastbp.simd.dropout import drop_strip, dropout_of
from fastbp.simd.gemm import share
from fastbp.simd.math import LOG2_E
from fastbp.simd.packing import transpose_square as transpose

IN_PLACE = 128
"""Tokens up to which rows are used where they lie; more are copied side by side first."""


# ---- Numba: in and out of scratch ------------------------------------------------------------------------------------


@inline
def _copy_padded(args, rows, columns, source, source_row, target, width):
    """Rows of `columns` elements, padded with zeros to `width`."""
    for i in range(rows):
        row, padded = span(args, source, i * source_row, columns), span(args, target, i * width, width)
        for j in range(columns):
            padded[j] = row[j]
        for j in range(columns, width):
            padded[j] = 0


@inline
def _transpose_in(args, rows, columns, source, source_row, target):
    """(rows, columns) into (columns, rows), padded with zeros to whole vectors of rows."""
    size, length = itemsize(args), lanes(args)
    block = BLOCK_VECTORS * length
    for i in range(0, rows, length):
        for j in range(0, columns, length):
            if i + length <= rows and j + length <= columns:
                at, to = source + (i * source_row + j) * size, target + (j * block + i) * size
                transpose(args, at, source_row * size, to, block * size)
                continue
            for c in range(j, min(j + length, columns)):
                to = span(args, target, c * block + i, length)
                for r in range(length):
                    to[r] = span(args, source, (i + r) * source_row + c, 1)[0] if i + r < rows else 0


@inline
def _transpose_out(args, rows, columns, source, target, target_row):
    """(columns, rows) back into (rows, columns)."""
    size, length = itemsize(args), lanes(args)
    block = BLOCK_VECTORS * length
    for i in range(0, rows, length):
        for j in range(0, columns, length):
            if i + length <= rows and j + length <= columns:
                at, to = source + (j * block + i) * size, target + (i * target_row + j) * size
                transpose(args, at, block * size, to, target_row * size)
                continue
            for r in range(i, min(i + length, rows)):
                to = span(args, target, r * target_row, columns)
                for c in range(j, min(j + length, columns)):
                    to[c] = span(args, source, c * block + r, 1)[0]


# ---- Numba: blocks of queries, strips of keys ------------------------------------------------------------------------


@inline
def _blocks(args, T):
    """Blocks of queries of a head."""
    return ((T + lanes(args) - 1) // lanes(args) + BLOCK_VECTORS - 1) // BLOCK_VECTORS


@inline
def _block_start(args, T, block):
    """The first vector of a block, which ends where the next begins."""
    return (T + lanes(args) - 1) // lanes(args) * block // _blocks(args, T)


@inline
def _strip(args, T, q0, i, begin, end):
    """The vector f and the keys lo … hi of a chunk that the vectors from f on see alone. Strip 0 is the past, which all
    queries see whole; strip i > 0 lies on the diagonal of vector f = i − 1."""
    length = lanes(args)
    if i == 0:
        return 0, begin, min(q0, T, end)
    diagonal = q0 + (i - 1) * length
    return i - 1, max(diagonal, begin), min(diagonal + length, T, end)


@inline
def _hide(args, rows, key, s, value):
    """On the diagonal, what a query does not see; `key` is the first row's place in its strip."""
    block = BLOCK_VECTORS * lanes(args)
    for i in range(rows):
        hidden = span(args, s, i * block, key + i)
        for j in range(key + i):
            hidden[j] = value


@inline
def _attend_chunk(args, T, D, q0, vectors, begin, end, keys, work, power, drop, row):
    """Scores, weights and Oᵀ of a block against the keys begin … end."""
    k, v, step = keys
    query, out, s, peak, last, total, spare = work
    size, length = itemsize(args), lanes(args)
    block, column = BLOCK_VECTORS * length * size, length * size
    for i in range(vectors + 1):
        f, lo, hi = _strip(args, T, q0, i, begin, end)
        if lo < hi:
            at, scores, n = f * column, s + (lo - begin) * block + f * column, vectors - f
            strip_product(
                args, n, hi - lo, D, k + lo * step * size, step * size, size, query + at, block, scores, block, 0
            )  # fmt: skip
            if i > 0:
                _hide(args, hi - lo, lo - q0 - f * length, scores, cast(args, -np.inf))
            take_peak(args, n, hi - lo, scores, peak + at)
    if begin > 0:
        weigh(args, vectors, 1, last, peak, spare, power)
        multiply(args, vectors, 1, total, last)
        multiply(args, vectors, D, out, last)
    for i in range(vectors + 1):
        f, lo, hi = _strip(args, T, q0, i, begin, end)
        if lo < hi:
            at, scores, n = f * column, s + (lo - begin) * block + f * column, vectors - f
            weigh(args, n, hi - lo, scores, peak + at, total + at, power)
            if drop is not None:
                drop_strip(args, n, hi - lo, scores, row + q0 + f * length, lo, drop)
            strip_product(
                args, n, D, hi - lo, v + lo * step * size, size, step * size, scores, block, out + at, block, lo
            )  # fmt: skip


@inline
def _attend_block(args, T, C, D, block, q, o, sums, chunk, keys, work, drop, row):
    """O and log Σ exp of one block of queries."""
    query, out, _, peak, last, total, _ = work
    size, length = itemsize(args), lanes(args)
    first = _block_start(args, T, block)
    vectors = _block_start(args, T, block + 1) - first
    q0, width, scale = first * length, vectors * length, 1 / np.sqrt(D)
    stop = min(q0 + width, T)
    _transpose_in(args, stop - q0, D, q + q0 * 3 * C * size, 3 * C, query)
    peaks, lasts, totals = span(args, peak, 0, width), span(args, last, 0, width), span(args, total, 0, width)
    for j in range(width):
        peaks[j] = -np.inf
        totals[j] = 0
    for begin in range(0, stop, chunk):
        for j in range(width):
            lasts[j] = peaks[j]
        end = min(begin + chunk, stop)
        _attend_chunk(args, T, D, q0, vectors, begin, end, keys, work, cast(args, scale * LOG2_E), drop, row)
    for j in range(width):
        lasts[j] = cast(args, 1) / totals[j]
    for j in range(stop - q0):
        sums[q0 + j] = peaks[j] * cast(args, scale) + np.log(totals[j])
    multiply(args, vectors, D, out, last)
    _transpose_out(args, stop - q0, D, out, o + q0 * C * size, C)


@inline
def _forward_share(heads, blocks, worker, workers):
    """Where a worker's share of all heads' blocks begins, when block p of a head costs p + 1: head and block."""
    whole = blocks * (blocks + 1) // 2
    start = heads * whole * worker // workers
    block = 0
    while block * (block + 1) // 2 < start % whole:
        block += 1
    return start // whole, block


@inline
def _place_keys(args, keys, C, D, k, copies):
    """K and V of a head and the elements from row to row: in place, or copied where they are many or fill no vector."""
    size, width = itemsize(args), (D + lanes(args) - 1) // lanes(args) * lanes(args)
    k_copy, v_copy = copies
    if k_copy == 0:
        return k, k + C * size, 3 * C
    _copy_padded(args, keys, D, k, 3 * C, k_copy, width)
    _copy_padded(args, keys, D, k + C * size, 3 * C, v_copy, width)
    return k_copy, v_copy, width


@inline
def _forward(args, worker, workers, qkv, o, lse, scratch, drop, row):
    B, T, C, H, K, P = dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4), dim(args, 5), dim(args, 6)
    D, size, length = C // H, itemsize(args), lanes(args)
    block, width = BLOCK_VECTORS * length * size, (D + length - 1) // length * length
    k_copy = scratch + worker * P * size
    v_copy = k_copy + T * width * size
    query = v_copy + T * width * size
    out = query + width * block
    s = out + width * block
    peak = s + K * block
    work = (query, out, s, peak, peak + block, peak + 2 * block, peak + 3 * block)
    copies = (k_copy, v_copy) if T > IN_PLACE or D % length else (0, 0)
    blocks = _blocks(args, T)
    task, part = _forward_share(B * H, blocks, worker, workers)
    last_task, last_part = _forward_share(B * H, blocks, worker + 1, workers)
    while task < last_task or (task == last_task and part < last_part):
        end = blocks if task < last_task else last_part
        q = qkv + (task // H * T * 3 * C + task % H * D) * size
        out_head = o + (task // H * T * C + task % H * D) * size
        keys = _place_keys(args, min(_block_start(args, T, end) * length, T), C, D, q + C * size, copies)
        sums = span(args, lse, task * T, T)
        for p in range(part, end):
            _attend_block(args, T, C, D, p, q, out_head, sums, K, keys, work, drop, row + task * T)
        task, part = task + 1, 0


def numba_forward(args, worker, workers):
    _forward(args, worker, workers, dim(args, 8), dim(args, 9), dim(args, 10), dim(args, 11), None, 0)


def numba_dropout_forward(args, worker, workers):
    qkv, o, lse, scratch = dim(args, 11), dim(args, 13), dim(args, 14), dim(args, 15)
    drop, row = dropout_of(args, 9, dim(args, 12)), dim(args, 8) * dim(args, 4) * dim(args, 2)
    _forward(args, worker, workers, qkv, o, lse, scratch, drop, row)


# ---- Numba: backward -------------------------------------------------------------------------------------------------


@inline
def _backward_strip(args, D, q0, vectors, queries, f, lo, hi, head, rows, work, drop, row):
    """A block against the keys of one strip: adds to dK, dV and dQᵀ."""
    k, v, dk, dv, key_row = head
    query_rows, dout_rows, dout_row = rows
    query, dout, dq, p, ds, lse, delta = work
    size, length, n = itemsize(args), lanes(args), hi - lo
    block, at, step = BLOCK_VECTORS * length * size, f * length * size, key_row * size
    count, columns, keys, scale = vectors - f, (D + length - 1) // length, lo * step, 1 / np.sqrt(D)
    left = queries - f * length
    p, ds = p + at, ds + at
    strip_product(args, count, n, D, k + keys, step, size, query + at, block, p, block, 0)
    strip_product(args, count, n, D, v + keys, step, size, dout + at, block, ds, block, 0)
    if drop is not None:
        drop_strip(args, count, n, ds, row + q0 + f * length, lo, drop)
    slope(args, count, n, p, ds, lse + at, delta + at, cast(args, scale * LOG2_E), cast(args, scale))
    if drop is not None:
        drop_strip(args, count, n, p, row + q0 + f * length, lo, drop)
    if lo >= q0:
        _hide(args, n, lo - q0 - f * length, p, cast(args, 0))
        _hide(args, n, lo - q0 - f * length, ds, cast(args, 0))
    dout_at, query_at = dout_rows + f * length * dout_row * size, query_rows + f * length * step
    strip_product(args, columns, n, left, p, block, size, dout_at, dout_row * size, dv + keys, step, 1)
    strip_product(args, columns, n, left, ds, block, size, query_at, step, dk + keys, step, 1)
    strip_product(args, count, D, n, k + keys, size, step, ds, block, dq + at, block, lo)


@inline
def _place_queries(args, C, D, queries, q, dout, o, sums, copies, work):
    """Q and dO of a block as rows and transposed, log₂ Σ exp and δ = Σ dO∘O."""
    query, dout_t, _, _, _, lse, delta = work
    query_copy, dout_copy = copies
    length = lanes(args)
    block, width = BLOCK_VECTORS * length, (D + length - 1) // length * length
    rows = (q, dout, C)
    if query_copy != 0:
        _copy_padded(args, queries, D, q, 3 * C, query_copy, width)
        _copy_padded(args, queries, D, dout, C, dout_copy, width)
        rows = (query_copy, dout_copy, width)
    _transpose_in(args, queries, D, q, 3 * C, query)
    _transpose_in(args, queries, D, dout, C, dout_t)
    logs, deltas = span(args, lse, 0, block), span(args, delta, 0, block)
    for i in range(block):
        logs[i] = 0
        deltas[i] = 0
    for i in range(queries):
        logs[i] = sums[i] * cast(args, LOG2_E)
        do_row, o_row = span(args, dout, i * C, D), span(args, o, i * C, D)
        along = cast(args, 0)
        for c in range(D):
            along += do_row[c] * o_row[c]
        deltas[i] = along
    return rows


@inline
def _backward_head(args, T, C, D, q, dout, o, sums, dq_head, chunk, head, copies, work, drop, row):
    """All blocks of a head, in the order of the queries."""
    size, length = itemsize(args), lanes(args)
    dq = work[2]
    for block in range(_blocks(args, T)):
        first = _block_start(args, T, block)
        vectors = _block_start(args, T, block + 1) - first
        q0 = first * length
        stop = min(q0 + vectors * length, T)
        at, to = q0 * 3 * C * size, q0 * C * size
        logs = sums[q0:stop]
        rows = _place_queries(args, C, D, stop - q0, q + at, dout + to, o + to, logs, copies, work)
        for begin in range(0, stop, chunk):
            for i in range(vectors + 1):
                f, lo, hi = _strip(args, T, q0, i, begin, min(begin + chunk, stop))
                if lo < hi:
                    _backward_strip(args, D, q0, vectors, stop - q0, f, lo, hi, head, rows, work, drop, row)
        _transpose_out(args, stop - q0, D, dq, dq_head + at, 3 * C)


@inline
def _clear(args, rows, columns, x, row):
    for i in range(rows):
        line = span(args, x, i * row, columns)
        for j in range(columns):
            line[j] = 0


@inline
def _copy(args, rows, columns, source, source_row, target, target_row):
    for i in range(rows):
        line, to = span(args, source, i * source_row, columns), span(args, target, i * target_row, columns)
        for j in range(columns):
            to[j] = line[j]


@inline
def _backward(args, worker, workers, do, qkv, o, lse, dqkv, scratch, drop, row):
    B, T, C, H, K, R = dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4), dim(args, 5), dim(args, 7)
    D, size, length = C // H, itemsize(args), lanes(args)
    block, width = BLOCK_VECTORS * length * size, (D + length - 1) // length * length
    copied = T > IN_PLACE or D % length
    k_copy = scratch + worker * R * size
    rows, part = T * width * size, width * block
    dk_copy, query_copy = k_copy + 2 * rows, k_copy + 4 * rows
    query = query_copy + 2 * part
    p = query + 3 * part
    lse_copy = p + 2 * K * block
    work = (query, query + part, query + 2 * part, p, p + K * block, lse_copy, lse_copy + block)
    key_copies = (k_copy, k_copy + rows) if copied else (0, 0)
    query_copies = (query_copy, query_copy + part) if copied else (0, 0)
    start, stop = share(B * H, worker, workers, 1)
    for task in range(start, stop):
        first, at = (task // H * T * 3 * C + task % H * D) * size, (task // H * T * C + task % H * D) * size
        q, dq = qkv + first, dqkv + first
        k, v, step = _place_keys(args, T, C, D, q + C * size, key_copies)
        dk, dv = (dk_copy, dk_copy + rows) if copied else (dq + C * size, dq + 2 * C * size)
        _clear(args, T, width, dk, step)
        _clear(args, T, width, dv, step)
        head, sums = (k, v, dk, dv, step), span(args, lse, task * T, T)
        first_row = row + task * T
        _backward_head(args, T, C, D, q, do + at, o + at, sums, dq, K, head, query_copies, work, drop, first_row)
        if copied:
            _copy(args, T, D, dk, width, dq + C * size, 3 * C)
            _copy(args, T, D, dv, width, dq + 2 * C * size, 3 * C)


def numba_backward(args, worker, workers):
    do, qkv, o, lse, dqkv = dim(args, 8), dim(args, 9), dim(args, 10), dim(args, 11), dim(args, 12)
    _backward(args, worker, workers, do, qkv, o, lse, dqkv, dim(args, 13), None, 0)


def numba_dropout_backward(args, worker, workers):
    do, qkv, o, lse, dqkv = dim(args, 11), dim(args, 12), dim(args, 14), dim(args, 15), dim(args, 16)
    drop, row = dropout_of(args, 9, dim(args, 13)), dim(args, 8) * dim(args, 4) * dim(args, 2)
    _backward(args, worker, workers, do, qkv, o, lse, dqkv, dim(args, 17), drop, row)
