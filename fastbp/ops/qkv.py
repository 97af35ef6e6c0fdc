"""The projections of attention: queries, keys and values side by side in a row of three widths.

    forward   y = [x·wq + bq | x·wk + bk | x·wv + bv]        x (N, C), each weight (C, C)
    backward  dx = dq·wqᵀ + dk·wkᵀ + dv·wvᵀ                  dw += xᵀ·d(its part)        db += Σ_n d(its part)

One op and not three: dx is one sum and x is read once. Backward needs x and the weights.
"""

from __future__ import annotations

from fastbp.base.late import Late
from fastbp.ops.op import Op
from fastbp.simd.scratch import panel_elements


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
    numba_forward=Late("fastbp.kernels.qkv", "numba_forward"),
    numba_backward=Late("fastbp.kernels.qkv", "numba_backward"),
    products=lambda d: (6 * d.N * d.C * d.C, 12 * d.N * d.C * d.C),
    pointwise=lambda d: (3 * d.N * d.C, 3 * d.N * d.C),
)
