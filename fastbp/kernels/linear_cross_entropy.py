"""The Numba kernels of `linear_cross_entropy`; fastbp/ops/linear_cross_entropy.py tells the maths and its traps.

Logits are held transposed, zᵀ (V, N): the weight, which comes from far, is read where it lies and x is what is packed;
and a vector holds one entry's logits for several rows, so a row's largest and its sum stay in their lane. What a row
gets depends on V alone, not on who shares the rows or how they are sliced. The twin of fastbp/_cross_entropy.h.
"""

from __future__ import annotations

import numpy as np

from fastbp.simd.abi import dim, inline, int_span, itemsize, span
from fastbp.simd.gemm import share, shared_gemm
from fastbp.simd.math import exp_scaled
from fastbp.simd.vector import elementwise

STRIP = 64
"""Columns that go together: lines of memory for each entry."""
ENTRIES = 64
"""Entries of a chunk, whose sum joins the rows' totals as one."""


def _exp(x):
    return exp_scaled(x, x.splat(1))


_keep_larger = elementwise(lambda z, largest: z.larger(largest))
_add_weights = elementwise(lambda z, largest, total: total + _exp(z - largest))
_weights = elementwise(lambda z, largest, factor: _exp(z - largest) * factor)


@inline
def _column_sums(args, V, row, columns, z, largest, total, chunk):
    """The largest logit of each column and Σ e^(z − largest), summed chunk by chunk. Differences are taken from a
    finite number, so −∞ counts nothing."""
    tops, totals, sums = span(args, largest, 0, columns), span(args, total, 0, columns), span(args, chunk, 0, columns)
    for n in range(columns):
        tops[n], totals[n] = np.finfo(tops.dtype).min, 0
    for v in range(V):
        _keep_larger(args, z + v * row, largest, largest, columns)
    for begin in range(0, V, ENTRIES):
        for n in range(columns):
            sums[n] = 0
        for v in range(begin, min(begin + ENTRIES, V)):
            _add_weights(args, z + v * row, largest, chunk, chunk, columns)
        for n in range(columns):
            totals[n] += sums[n]


@inline
def _strip(args, V, row, columns, z, targets, losses, dlosses, work):
    """losses = log Σ e^z − z[target] for at most STRIP columns; where `dlosses` is not 0, z becomes its gradient
    (softmax(z) − onehot(target)) · dlosses."""
    size = itemsize(args)
    largest, total = work, work + STRIP * size
    _column_sums(args, V, row, columns, z, largest, total, work + 2 * STRIP * size)
    tops, totals = span(args, largest, 0, columns), span(args, total, 0, columns)
    chosen, lost = int_span(args, targets, 0, columns), span(args, losses, 0, columns)
    for n in range(columns):
        lost[n] = np.log(totals[n]) - (span(args, z + chosen[n] * row, n, 1)[0] - tops[n])
    if not dlosses:
        return
    weight = span(args, dlosses, 0, columns)
    for n in range(columns):
        totals[n] = weight[n] / totals[n]
    for v in range(V):
        _weights(args, z + v * row, largest, total, z + v * row, columns)
    for n in range(columns):
        span(args, z + chosen[n] * row, n, 1)[0] -= weight[n]


@inline
def _cross_entropy(args, worker, workers, V, N, z, targets, losses, dlosses, work):
    """A worker's share of the rows, which are zᵀ's columns."""
    size = itemsize(args)
    start, stop = share(N, worker, workers, 64 // size)
    for n in range(start, stop, STRIP):
        at, columns = n * size, min(STRIP, stop - n)
        _strip(
            args, V, N * size, columns, z + at, targets + 4 * n, losses + at, dlosses + at if dlosses else 0, work
        )  # fmt: skip


@inline
def _logits(args, worker, workers, N, C, V, x, weight, z, panel):
    shared_gemm(args, worker, workers, V, N, C, weight, C, 1, x, 1, C, z, N, 0, 0, panel, 0)


def numba_forward(args, worker, workers):
    phase, N, C, V, P = dim(args, 0), dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4)
    x, targets, weight, losses, z = dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8), dim(args, 9)
    panel = dim(args, 10) + worker * P * itemsize(args)
    if phase == 0:
        _logits(args, worker, workers, N, C, V, x, weight, z, panel)
    else:
        _cross_entropy(args, worker, workers, V, N, z, targets, losses, 0, panel)


def numba_backward(args, worker, workers):
    phase, N, C, V, P = dim(args, 0), dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4)
    dlosses, x, targets, weight = dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8)
    dx, dweight, z, losses = dim(args, 9), dim(args, 10), dim(args, 11), dim(args, 13)
    panel = dim(args, 12) + worker * P * itemsize(args)
    if phase == 0:
        _logits(args, worker, workers, N, C, V, x, weight, z, panel)
    elif phase == 1:
        _cross_entropy(args, worker, workers, V, N, z, targets, losses, dlosses, panel)
    else:
        shared_gemm(args, worker, workers, N, C, V, z, 1, N, weight, C, 1, dx, C, 0, 0, panel, 0)
        shared_gemm(args, worker, workers, V, C, N, z, N, 1, x, C, 1, dweight, C, dweight, C, panel, 0)
