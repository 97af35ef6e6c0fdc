"""The Numba kernels of `qkv`; fastbp/ops/qkv.py tells the maths and its traps."""

from __future__ import annotations

from fastbp.simd.abi import dim, itemsize
from fastbp.simd.gemm import shared_gemm


def numba_forward(args, worker, workers):
    N, C, P = dim(args, 1), dim(args, 2), dim(args, 3)
    x, y, size = dim(args, 4), dim(args, 11), itemsize(args)
    panel = dim(args, 12) + worker * P * size
    for i in range(3):
        weight, bias = dim(args, 5 + i), dim(args, 8 + i)
        shared_gemm(args, worker, workers, N, C, C, x, C, 1, weight, C, 1, y + i * C * size, 3 * C, bias, 0, panel, 0)


def numba_backward(args, worker, workers):
    N, C, P = dim(args, 1), dim(args, 2), dim(args, 3)
    dy, x, dx, size = dim(args, 4), dim(args, 5), dim(args, 9), itemsize(args)
    panel = dim(args, 16) + worker * P * size
    for i in range(3):
        part, weight, dweight, dbias = dy + i * C * size, dim(args, 6 + i), dim(args, 10 + i), dim(args, 13 + i)
        init = dx if i else 0
        shared_gemm(args, worker, workers, N, C, C, part, 3 * C, 1, weight, 1, C, dx, C, init, C, panel, 0)
        shared_gemm(args, worker, workers, C, C, N, x, 1, C, part, 3 * C, 1, dweight, C, dweight, C, panel, dbias)
