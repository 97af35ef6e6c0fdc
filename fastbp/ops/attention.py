"""Causal attention of several heads that keeps its weights P.

    forward   S = Q·Kᵀ;  P = softmax(S/√D) causal;  O = P·V                         a head of one sequence at a time
    backward  dV = Pᵀ·dO;  dP = dO·Vᵀ;  dS = P ∘ (dP − Σ dP·P)/√D;  dQ = dS·K;  dK = dSᵀ·Q

qkv holds a row's queries, keys and values side by side (3C), head h in columns h·D … (h+1)·D of each. Saved: p (B, H,
T, T), 4HT bytes a token; backward also reads q, k, v. Rows go in bands of R, and a band's products stop at its last
row, so about half of the square is skipped. Workers share the heads of the sequences. dK and dV grow band by band in
the order of the queries, one chain an element. Source: Vaswani et al. 2017, §3.2.
"""

from __future__ import annotations

import numpy as np

from fastbp.ops import softmax
from fastbp.ops.op import Op
from fastbp.ops.softmax import softmax_backward_row, softmax_row
from fastbp.simd.abi import cast, dim, itemsize, span
from fastbp.simd.gemm import gemm, share
from fastbp.simd.target import panel_elements

BAND = 64
"""Rows of queries that are worked on at a time."""


def band_sizes(d):
    """Rows of a band, and elements of a worker's panel."""
    rows, D = min(BAND, d.T), d.C // d.H
    elements = (
        panel_elements(D, d.T, rows), panel_elements(d.T, D, rows), panel_elements(rows, D, d.T, by_columns=True)
    )  # fmt: skip
    return {"R": rows, "P": max(elements)}


def heads_of(d, qkv):
    """(B, T, 3C) as three views (B, H, T, D)."""
    return qkv.reshape(d.B, d.T, 3, d.H, -1).transpose(2, 0, 3, 1, 4)


def _scaled(d):
    return softmax.Row(d.T, (d.C // d.H) ** -0.5)


def forward(d, qkv, o, p):
    q, k, v = heads_of(d, qkv)
    softmax.forward(_scaled(d), q @ k.swapaxes(-1, -2), p)
    o.reshape(d.B, d.T, d.H, -1)[:] = (p @ v).transpose(0, 2, 1, 3)


def backward(d, do, qkv, p, dqkv):
    q, k, v = heads_of(d, qkv)
    dq, dk, dv = heads_of(d, dqkv)
    do_heads = do.reshape(d.B, d.T, d.H, -1).transpose(0, 2, 1, 3)
    scores = np.empty_like(p)
    softmax.backward(_scaled(d), do_heads @ v.swapaxes(-1, -2), p, scores)
    dv[:] = p.swapaxes(-1, -2) @ do_heads
    dq[:] = scores @ k
    dk[:] = scores.swapaxes(-1, -2) @ q


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
            gemm(args, end - r, end, D, q + r * 3 * C * size, 3 * C, 1, k, 1, 3 * C, band, T, 0, 0, panel)
            for i in range(r, end):
                softmax_row(args, span(args, weights, i * T, T), i + 1, scale)
            gemm(args, end - r, D, end, band, T, 1, v, 3 * C, 1, out + r * C * size, C, 0, 0, panel)


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
            gemm(args, rows, end, D, dout_band, C, 1, v, 1, wide, ds, T, 0, 0, panel)
            for i in range(rows):
                softmax_backward_row(args, span(args, band, i * T, end), span(args, ds, i * T, end), end, scale)
            gemm(args, rows, D, end, ds, T, 1, k, wide, 1, dq + at, wide, 0, 0, panel)
            gemm(args, end, D, rows, ds, 1, T, q + at, wide, 1, dk, wide, dk, wide, panel)
            gemm(args, end, D, rows, band, 1, T, dout_band, C, 1, dv, wide, dv, wide, panel)


OP = Op(
    name="attention",
    dims=("B", "T", "C", "H", "R", "P"),
    inputs={"qkv": "B T 3C"},
    outputs={"o": "B T C"},
    saved={"p": "B H T T"},
    backward_reads=("qkv", "p"),
    forward_scratch={"panel": "W P"},
    scratch={"ds": "W R T", "panel": "W P"},
    derive=band_sizes,
    independent_along="B",
    forward=forward,
    backward=backward,
    numba_forward=numba_forward,
    numba_backward=numba_backward,
    products=lambda d: (2 * d.B * d.T * d.T * d.C, 4 * d.B * d.T * d.T * d.C),
    pointwise=lambda d: (3 * d.B * d.H * d.T * d.T, 2 * d.B * d.H * d.T * d.T),
)
