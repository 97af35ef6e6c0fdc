"""The projections of attention: queries, keys and values side by side in a row of three widths.

    forward   y = [x·wq + bq | x·wk + bk | x·wv + bv]        x (N, C), each weight (C, C)
    backward  dx = dq·wqᵀ + dk·wkᵀ + dv·wvᵀ                  dw += xᵀ·d(its part)        db += Σ_n d(its part)

One op and not three: dx is one sum and x is read once. Backward needs x and the weights.
"""

from __future__ import annotations

from fastbp.ops.linear import add_columns
from fastbp.ops.op import Op
from fastbp.simd.abi import dim, itemsize
from fastbp.simd.gemm import shared_gemm
from fastbp.simd.target import panel_elements


def forward(d, x, wq, wk, wv, bq, bk, bv, y):
    for i, (weight, bias) in enumerate(((wq, bq), (wk, bk), (wv, bv))):
        part = y[:, i * d.C : (i + 1) * d.C]
        part[:] = x @ weight
        if bias is not None:
            part += bias


def backward(d, dy, x, wq, wk, wv, dx, dwq, dwk, dwv, dbq, dbk, dbv):
    dx[:] = 0
    for i, (weight, dweight, dbias) in enumerate(((wq, dwq, dbq), (wk, dwk, dbk), (wv, dwv, dbv))):
        part = dy[:, i * d.C : (i + 1) * d.C]
        dx += part @ weight.T
        dweight += x.T @ part
        if dbias is not None:
            dbias += part.sum(axis=0)


def numba_forward(args, worker, workers):
    N, C, P = dim(args, 1), dim(args, 2), dim(args, 3)
    x, y, size = dim(args, 4), dim(args, 11), itemsize(args)
    panel = dim(args, 12) + worker * P * size
    for i in range(3):
        weight, bias = dim(args, 5 + i), dim(args, 8 + i)
        shared_gemm(args, worker, workers, N, C, C, x, C, 1, weight, C, 1, y + i * C * size, 3 * C, bias, 0, panel)


def numba_backward(args, worker, workers):
    N, C, P = dim(args, 1), dim(args, 2), dim(args, 3)
    dy, x, dx, size = dim(args, 4), dim(args, 5), dim(args, 9), itemsize(args)
    panel = dim(args, 16) + worker * P * size
    for i in range(3):
        part, weight, dweight, dbias = dy + i * C * size, dim(args, 6 + i), dim(args, 10 + i), dim(args, 13 + i)
        init = dx if i else 0
        shared_gemm(args, worker, workers, N, C, C, part, 3 * C, 1, weight, 1, C, dx, C, init, C, panel)
        shared_gemm(args, worker, workers, C, C, N, x, 1, C, part, 3 * C, 1, dweight, C, dweight, C, panel)
        if dbias:
            add_columns(args, worker, workers, N, C, part, 3 * C, dbias)


OP = Op(
    name="qkv",
    dims=("N", "C", "P"),
    inputs={"x": "N C"},
    params={"wq": "C C", "wk": "C C", "wv": "C C", "bq": "C", "bk": "C", "bv": "C"},
    optional=("bq", "bk", "bv"),
    outputs={"y": "N 3C"},
    backward_reads=("x", "wq", "wk", "wv"),
    forward_scratch={"panel": "W P"},
    scratch={"panel": "W P"},
    derive=lambda d: {"P": max(panel_elements(d.C, d.C, d.N), panel_elements(d.N, d.C, d.C, by_columns=True))},
    forward=forward,
    backward=backward,
    numba_forward=numba_forward,
    numba_backward=numba_backward,
    products=lambda d: (6 * d.N * d.C * d.C, 12 * d.N * d.C * d.C),
    pointwise=lambda d: (3 * d.N * d.C, 3 * d.N * d.C),
)
