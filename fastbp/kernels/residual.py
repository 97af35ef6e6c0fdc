"""The Numba kernels of `residual`; fastbp/ops/residual.py tells the maths and its traps."""

from __future__ import annotations

from fastbp.simd.abi import add, copy, dim, span
from fastbp.simd.gemm import share


def numba_forward(args, worker, workers):
    start, stop = share(dim(args, 1) * dim(args, 2), worker, workers, 16)
    size = stop - start
    x, f, y = dim(args, 3), dim(args, 4), dim(args, 5)
    total = span(args, y, start, size)
    if y == f:
        add(span(args, x, start, size), total, size)
        return
    if y != x:
        copy(span(args, x, start, size), total, size)
    add(span(args, f, start, size), total, size)
