"""The Numba kernels of `attention`; fastbp/ops/attention.py tells the maths and its traps."""

from __future__ import annotations

import numpy as np

from fastbp.kernels.softmax import softmax_backward_row, softmax_row
from fastbp.simd.abi import cast, dim, itemsize, span
from fastbp.simd.gemm import gemm, share


def numba_forward(args, worker, workers):
    B, T, C, H = dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4)
    R, P, qkv, o, p = dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8), dim(args, 9)
    D, size = C // H, itemsize(args)
    panel = dim(args, 10) + worker * P * size
    scale = cast(args, 1 / np.sqrt(D))
    start, stop = share(B * H, worker, workers, 1)
    for task in range(start, stop):
        b, h = task // H, task % H
        q = qkv + (b * T * 3 * C + h * D) * size
        k, v = q + C * size, q + 2 * C * size
        out = o + (b * T * C + h * D) * size
        weights = p + task * T * T * size
        for r in range(0, T, R):
            end = min(r + R, T)
            band = weights + r * T * size
            gemm(args, end - r, end, D, q + r * 3 * C * size, 3 * C, 1, k, 1, 3 * C, band, T, 0, 0, panel, 0)
            for i in range(r, end):
                softmax_row(args, span(args, weights, i * T, T), i + 1, scale)
            gemm(args, end - r, D, end, band, T, 1, v, 3 * C, 1, out + r * C * size, C, 0, 0, panel, 0)


def numba_backward(args, worker, workers):
    B, T, C, H = dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4)
    R, P = dim(args, 5), dim(args, 6)
    do, qkv, p, dqkv = dim(args, 7), dim(args, 8), dim(args, 9), dim(args, 10)
    D, size, wide = C // H, itemsize(args), 3 * C
    ds = dim(args, 11) + worker * R * T * size
    panel = dim(args, 12) + worker * P * size
    scale = cast(args, 1 / np.sqrt(D))
    start, stop = share(B * H, worker, workers, 1)
    for task in range(start, stop):
        b, h = task // H, task % H
        first = (b * T * wide + h * D) * size
        q, k, v = qkv + first, qkv + first + C * size, qkv + first + 2 * C * size
        dq, dk, dv = dqkv + first, dqkv + first + C * size, dqkv + first + 2 * C * size
        dout = do + (b * T * C + h * D) * size
        weights = p + task * T * T * size
        for r in range(0, T, R):
            end = min(r + R, T)
            rows, at, band = end - r, r * wide * size, weights + r * T * size
            for i in range(r, end):
                zero_k, zero_v = span(args, dk, i * wide, D), span(args, dv, i * wide, D)
                for c in range(D):
                    zero_k[c] = 0
                    zero_v[c] = 0
            dout_band = dout + r * C * size
            gemm(args, rows, end, D, dout_band, C, 1, v, 1, wide, ds, T, 0, 0, panel, 0)
            for i in range(rows):
                softmax_backward_row(args, span(args, band, i * T, end), span(args, ds, i * T, end), end, scale)
            gemm(args, rows, D, end, ds, T, 1, k, wide, 1, dq + at, wide, 0, 0, panel, 0)
            gemm(args, end, D, rows, ds, 1, T, q + at, wide, 1, dk, wide, dk, wide, panel, 0)
            gemm(args, end, D, rows, band, 1, T, dout_band, C, 1, dv, wide, dv, wide, panel, 0)
