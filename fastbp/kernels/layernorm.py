"""The Numba kernels of `layernorm`; fastbp/ops/layernorm.py tells the maths and its traps."""

from __future__ import annotations

import numpy as np

from fastbp.simd.abi import cast, dim, inline, itemsize, number, span
from fastbp.simd.gemm import share

BLOCK = 32
"""Rows whose sums are made at a time, right behind their dx: dy and x are still in the cache. A worker's columns run
through all rows in order; only its own rows come in such blocks."""


@inline
def _forward_row(args, x, weight, bias, y, eps, C):
    total = cast(args, 0)
    for c in range(C):
        total += x[c]
    mean = total / cast(args, C)
    squares = cast(args, 0)
    for c in range(C):
        squares += (x[c] - mean) * (x[c] - mean)
    rstd = cast(args, 1) / np.sqrt(squares / cast(args, C) + eps)
    for c in range(C):
        y[c] = (x[c] - mean) * rstd * weight[c] + bias[c]
    return mean, rstd


def numba_forward(args, worker, workers):
    N, C, eps = dim(args, 1), dim(args, 2), number(args, 3)
    x, weight, bias, y, mean, rstd = dim(args, 4), dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8), dim(args, 9)
    start, stop = share(N, worker, workers, 1)
    w, b = span(args, weight, 0, C), span(args, bias, 0, C)
    for n in range(start, stop):
        m, r = _forward_row(args, span(args, x, n * C, C), w, b, span(args, y, n * C, C), eps, C)
        span(args, mean, n, 1)[0] = m
        span(args, rstd, n, 1)[0] = r


@inline
def _backward_row(args, dy, x, weight, mean, rstd, dx, C):
    total = cast(args, 0)
    along = cast(args, 0)
    for c in range(C):
        g = dy[c] * weight[c]
        total += g
        along += g * ((x[c] - mean) * rstd)
    total /= cast(args, C)
    along /= cast(args, C)
    for c in range(C):
        x_hat = (x[c] - mean) * rstd
        dx[c] = (dy[c] * weight[c] - total - x_hat * along) * rstd


@inline
def _add_row(dy, x, mean, rstd, dweight, dbias, width):
    for c in range(width):
        dweight[c] += dy[c] * ((x[c] - mean) * rstd)
        dbias[c] += dy[c]


@inline
def _add_rows(args, start, stop, C, left, dy, x, means, rstds, dweight, dbias):
    width = dweight.size
    for n in range(start, stop):
        row = n * C + left
        _add_row(span(args, dy, row, width), span(args, x, row, width), means[n], rstds[n], dweight, dbias, width)


def numba_backward(args, worker, workers):
    N, C = dim(args, 1), dim(args, 2)
    dy, x, weight, mean, rstd = dim(args, 4), dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8)
    dx, dweight, dbias = dim(args, 9), dim(args, 10), dim(args, 11)
    w = span(args, weight, 0, C)
    means, rstds = span(args, mean, 0, N), span(args, rstd, 0, N)
    start, stop = share(N, worker, workers, 1)
    left, right = share(C, worker, workers, 64 // itemsize(args))
    dw, db = span(args, dweight, left, right - left), span(args, dbias, left, right - left)
    _add_rows(args, 0, start, C, left, dy, x, means, rstds, dw, db)
    for block in range(start, stop, BLOCK):
        end = min(block + BLOCK, stop)
        for n in range(block, end):
            row = n * C
            _backward_row(
                args, span(args, dy, row, C), span(args, x, row, C), w, means[n], rstds[n], span(args, dx, row, C), C
            )
        _add_rows(args, block, end, C, left, dy, x, means, rstds, dw, db)
    _add_rows(args, stop, N, C, left, dy, x, means, rstds, dw, db)
