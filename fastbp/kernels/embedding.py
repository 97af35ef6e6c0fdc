"""The Numba kernels of `embedding`; fastbp/ops/embedding.py tells the maths and its traps."""

from __future__ import annotations

from fastbp.simd.abi import dim, int_span, itemsize, span
from fastbp.simd.gemm import share


def numba_forward(args, worker, workers):
    N, T, C = dim(args, 1), dim(args, 2), dim(args, 3)
    tokens, table, positions, x = dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8)
    start, stop = share(N, worker, workers, 1)
    for n in range(start, stop):
        row = span(args, x, n * C, C)
        token = span(args, table, int_span(args, tokens, n, 1)[0] * C, C)
        position = span(args, positions, n % T * C, C)
        for c in range(C):
            row[c] = token[c] + position[c]


def numba_backward(args, worker, workers):
    N, T, C = dim(args, 1), dim(args, 2), dim(args, 3)
    dx, tokens, dtable, dpositions = dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8)
    start, stop = share(C, worker, workers, 64 // itemsize(args))
    width = stop - start
    for n in range(N):
        row = span(args, dx, n * C + start, width)
        token = span(args, dtable, int_span(args, tokens, n, 1)[0] * C + start, width)
        for c in range(width):
            token[c] += row[c]
        if dpositions:
            position = span(args, dpositions, n % T * C + start, width)
            for c in range(width):
                position[c] += row[c]
