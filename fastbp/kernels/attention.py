"""The Numba kernels of `attention` and `attention_dropout`; fastbp/ops/attention.py and fastbp/ops/attention_dropout.py
tell the maths and its traps.

`drop` is None without dropout: what depends on it is then left out as the kernel is compiled.
"""

from __future__ import annotations

import numpy as np

from fastbp.kernels.softmax import softmax_backward_row, softmax_row
from fastbp.simd.abi import cast, dim, inline, itemsize, span
from fastbp.simd.dropout import drop_row, dropout_of
from fastbp.simd.gemm import gemm, share


@inline
def _forward(args, worker, workers, qkv, o, p, panel, drop, row, kept):
    """With dropout `kept` takes a band's weights times their factors; `row` is the first of M."""
    B, T, C, H, R = dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4), dim(args, 5)
    D, size = C // H, itemsize(args)
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
            if drop is not None:
                for i in range(r, end):
                    to = kept + (i - r) * T * size
                    drop_row(args, weights + i * T * size, to, end, row + task * T + i, drop)
                band = kept
            gemm(args, end - r, D, end, band, T, 1, v, 3 * C, 1, out + r * C * size, C, 0, 0, panel, 0)


def numba_forward(args, worker, workers):
    panel = dim(args, 10) + worker * dim(args, 6) * itemsize(args)
    _forward(args, worker, workers, dim(args, 7), dim(args, 8), dim(args, 9), panel, None, 0, 0)


def numba_dropout_forward(args, worker, workers):
    T, H, R, P, S = dim(args, 2), dim(args, 4), dim(args, 5), dim(args, 6), dim(args, 7)
    drop = dropout_of(args, 8, dim(args, 11))
    kept = dim(args, 14) + worker * R * T * itemsize(args)
    panel = dim(args, 15) + worker * P * itemsize(args)
    _forward(args, worker, workers, dim(args, 10), dim(args, 12), dim(args, 13), panel, drop, S * H * T, kept)


@inline
def _backward(args, worker, workers, do, qkv, p, dqkv, ds, panel, drop, row):
    """With dropout dV comes first, for `ds` holds a band's weights times their factors until then."""
    B, T, C, H, R = dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4), dim(args, 5)
    D, size, wide = C // H, itemsize(args), 3 * C
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
            dout_band, drop_from = dout + r * C * size, row + task * T + r
            if drop is not None:
                for i in range(rows):
                    drop_row(args, band + i * T * size, ds + i * T * size, end, drop_from + i, drop)
                gemm(args, end, D, rows, ds, 1, T, dout_band, C, 1, dv, wide, dv, wide, panel, 0)
            gemm(args, rows, end, D, dout_band, C, 1, v, 1, wide, ds, T, 0, 0, panel, 0)
            for i in range(rows):
                if drop is not None:
                    drop_row(args, ds + i * T * size, ds + i * T * size, end, drop_from + i, drop)
                softmax_backward_row(args, span(args, band, i * T, end), span(args, ds, i * T, end), end, scale)
            gemm(args, rows, D, end, ds, T, 1, k, wide, 1, dq + at, wide, 0, 0, panel, 0)
            gemm(args, end, D, rows, ds, 1, T, q + at, wide, 1, dk, wide, dk, wide, panel, 0)
            if drop is None:
                gemm(args, end, D, rows, band, 1, T, dout_band, C, 1, dv, wide, dv, wide, panel, 0)


def numba_backward(args, worker, workers):
    T, R, P, size = dim(args, 2), dim(args, 5), dim(args, 6), itemsize(args)
    ds, panel = dim(args, 11) + worker * R * T * size, dim(args, 12) + worker * P * size
    _backward(args, worker, workers, dim(args, 7), dim(args, 8), dim(args, 9), dim(args, 10), ds, panel, None, 0)


def numba_dropout_backward(args, worker, workers):
    T, H, R, P, S, size = dim(args, 2), dim(args, 4), dim(args, 5), dim(args, 6), dim(args, 7), itemsize(args)
    drop = dropout_of(args, 8, dim(args, 12))
    ds, panel = dim(args, 15) + worker * R * T * size, dim(args, 16) + worker * P * size
    do, qkv, p, dqkv = dim(args, 10), dim(args, 11), dim(args, 13), dim(args, 14)
    _backward(args, worker, workers, do, qkv, p, dqkv, ds, panel, drop, S * H * T)
