"""The Numba kernels of `softmax`; fastbp/ops/softmax.py tells the maths and its traps."""

from __future__ import annotations

import numpy as np

from fastbp.simd.abi import cast, copy, dim, inline, number, span
from fastbp.simd.gemm import share
from fastbp.simd.math import exp_scaled
from fastbp.simd.vector import map_and_sum, row_largest

_exp_row = map_and_sum(lambda x, scale, highest: exp_scaled(x - highest, scale))


@inline
def exp_and_sum(args, p, size, scale):
    """p = exp(scale·(p − m)) over the first `size` columns, m their largest; returns m and Σ p."""
    at = p.ctypes.data
    highest = row_largest(args, at, size)
    return highest, _exp_row(args, at, at, size, scale, highest)


@inline
def softmax_row(args, p, seen, scale):
    """p = softmax(scale · p) over the first `seen` columns, 0 behind; returns log Σ exp(scale · p)."""
    highest, total = exp_and_sum(args, p, seen, scale)
    inverse = cast(args, 1) / total
    for j in range(seen):
        p[j] *= inverse
    for j in range(seen, p.size):
        p[j] = 0
    return highest * scale + np.log(total)


@inline
def softmax_backward_row(args, p, ds, size, scale):
    """ds = scale · p ∘ (ds − Σ ds·p) over the first `size` columns, where ds came as dp."""
    total = cast(args, 0)
    for j in range(size):
        total += ds[j] * p[j]
    for j in range(size):
        ds[j] = p[j] * (ds[j] - total) * scale


def numba_forward(args, worker, workers):
    N, T, scale = dim(args, 1), dim(args, 2), number(args, 3)
    s, p = dim(args, 4), dim(args, 5)
    start, stop = share(N, worker, workers, 1)
    for n in range(start, stop):
        row = span(args, p, n * T, T)
        if s != p:
            copy(span(args, s, n * T, T), row, T)
        softmax_row(args, row, n % T + 1, scale)


def numba_backward(args, worker, workers):
    N, T, scale = dim(args, 1), dim(args, 2), number(args, 3)
    dp, p, ds = dim(args, 4), dim(args, 5), dim(args, 6)
    start, stop = share(N, worker, workers, 1)
    for n in range(start, stop):
        row = span(args, ds, n * T, T)
        if dp != ds:
            copy(span(args, dp, n * T, T), row, T)
        softmax_backward_row(args, span(args, p, n * T, T), row, T, scale)
