"""The Numba kernels of `linear_cross_entropy`; fastbp/ops/linear_cross_entropy.py tells the maths and its traps."""

from __future__ import annotations

import numpy as np

from fastbp.kernels.softmax import exp_and_sum
from fastbp.simd.abi import cast, dim, inline, int_span, itemsize, span
from fastbp.simd.gemm import share, shared_gemm


@inline
def _softmax_row(args, z, target):
    """z becomes softmax(z); returns the row's loss."""
    at_target = z[target]
    highest, total = exp_and_sum(args, z, z.size, cast(args, 1))
    inverse = cast(args, 1) / total
    for v in range(z.size):
        z[v] *= inverse
    return np.log(total) - (at_target - highest)


def numba_forward(args, worker, workers):
    phase, N, C, V, P = dim(args, 0), dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4)
    x, targets, weight, losses, z = dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8), dim(args, 9)
    panel = dim(args, 10) + worker * P * itemsize(args)
    if phase == 0:
        shared_gemm(args, worker, workers, N, V, C, x, C, 1, weight, 1, C, z, V, 0, 0, panel)
    else:
        start, stop = share(N, worker, workers, 1)
        for n in range(start, stop):
            target = int_span(args, targets, n, 1)[0]
            span(args, losses, n, 1)[0] = _softmax_row(args, span(args, z, n * V, V), target)


@inline
def _scale(row, factor):
    for v in range(row.size):
        row[v] *= factor


def numba_backward(args, worker, workers):
    phase, N, C, V, P = dim(args, 0), dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4)
    dlosses, x, targets, weight = dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8)
    dx, dweight, z, losses = dim(args, 9), dim(args, 10), dim(args, 11), dim(args, 13)
    panel = dim(args, 12) + worker * P * itemsize(args)
    if phase == 0:
        shared_gemm(args, worker, workers, N, V, C, x, C, 1, weight, 1, C, z, V, 0, 0, panel)
    elif phase == 1:
        start, stop = share(N, worker, workers, 1)
        for n in range(start, stop):
            target = int_span(args, targets, n, 1)[0]
            row = span(args, z, n * V, V)
            span(args, losses, n, 1)[0] = _softmax_row(args, row, target)
            row[target] -= cast(args, 1)
            _scale(row, span(args, dlosses, n, 1)[0])
    else:
        shared_gemm(args, worker, workers, N, C, V, z, V, 1, weight, C, 1, dx, C, 0, 0, panel)
        shared_gemm(args, worker, workers, V, C, N, z, 1, V, x, C, 1, dweight, C, dweight, C, panel)
