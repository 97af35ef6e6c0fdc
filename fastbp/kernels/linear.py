"""The Numba kernels of `linear`; fastbp/ops/linear.py tells the maths and its traps."""

from __future__ import annotations

from fastbp.simd.abi import dim, itemsize
from fastbp.simd.gemm import shared_gemm


def numba_forward(args, worker, workers):
    N, I, O, P = dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4)
    x, weight, bias, y = dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8)
    panel = dim(args, 9) + worker * P * itemsize(args)
    shared_gemm(args, worker, workers, N, O, I, x, I, 1, weight, O, 1, y, O, bias, 0, panel, 0)


def numba_backward(args, worker, workers):
    N, I, O, P = dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4)
    dy, x, weight = dim(args, 5), dim(args, 6), dim(args, 7)
    dx, dweight, dbias = dim(args, 8), dim(args, 9), dim(args, 10)
    panel = dim(args, 11) + worker * P * itemsize(args)
    shared_gemm(args, worker, workers, N, I, O, dy, O, 1, weight, 1, O, dx, I, 0, 0, panel, 0)
    shared_gemm(args, worker, workers, I, O, N, x, 1, I, dy, O, 1, dweight, O, dweight, O, panel, dbias)
