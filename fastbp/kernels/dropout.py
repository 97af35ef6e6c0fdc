"""The Numba kernel of `dropout`, forward and backward; fastbp/ops/dropout.py tells the maths and its traps."""

from __future__ import annotations

from fastbp.simd.abi import dim, itemsize
from fastbp.simd.dropout import drop_row, dropout_of
from fastbp.simd.gemm import share


def numba_kernel(args, worker, workers):
    N, C, S = dim(args, 1), dim(args, 2), dim(args, 3)
    x, y = dim(args, 6), dim(args, 8)
    drop = dropout_of(args, 4, dim(args, 7))
    start, stop = share(N, worker, workers, 1)
    for n in range(start, stop):
        at = n * C * itemsize(args)
        drop_row(args, x + at, y + at, C, S + n, drop)
