"""Causal attention in bands of queries that keeps one number a head and token, and no T × T array.

    forward   S = Q·Kᵀ/√D causal;  lse = log Σ exp S;  O = exp(S − lse)·V            a band of R queries at a time
    backward  P = exp(S − lse) again;  dV = Pᵀ·dO;  dP = dO·Vᵀ;  δ = Σ dO∘O a row;  dS = P ∘ (dP − δ)/√D;
              dQ = dS·K;  dK = dSᵀ·Q

Saved: lse (B, H, T), 4H bytes a token in float32; backward reads q, k, v, O and lse and computes the band's S again,
for 2·T·C FLOPs a token (half of the square is skipped). A band's scores stay in the worker's scratch, in L2.
Σ dP∘P = Σ dO∘O, so no row needs its whole dP first. Workers share the heads of the sequences; dK and dV grow band by
band in the order of the queries, one chain an element.
Source: Dao et al. 2022, §3.1 and appendix B.
"""

from __future__ import annotations

import numpy as np

from fastbp.ops.attention import heads_of
from fastbp.ops.op import Op
from fastbp.ops.softmax import softmax_row
from fastbp.simd.abi import cast, dim, inline, itemsize, span
from fastbp.simd.gemm import gemm, share
from fastbp.simd.math import exp

CHUNK = 96
"""Keys that a block of queries meets at a time."""
BLOCK = 48
"""Queries of a block, at most: three vectors of the widest kind."""


def scratch_sizes(d):
    """Keys of a chunk, and elements of a worker's scratch forward and backward, whatever the vectors' length."""
    width = -(-d.C // d.H // 16) * 16
    keys, rows = min(CHUNK, d.T), d.T * width
    small = 16 * 16 + 3 * BLOCK
    return {
        "K": keys,
        "P": 2 * rows + 2 * width * BLOCK + keys * BLOCK + small,
        "R": 4 * rows + 5 * width * BLOCK + 2 * keys * BLOCK + small,
    }


def _scores(d, q, k):
    """S with −∞ in the future."""
    future = np.triu(np.ones((d.T, d.T), bool), 1)
    scores = (q @ k.swapaxes(-1, -2)) * q.dtype.type((d.C // d.H) ** -0.5)
    scores[..., future] = -np.inf
    return scores


def forward(d, qkv, o, lse):
    q, k, v = heads_of(d, qkv)
    scores = _scores(d, q, k)
    highest = scores.max(axis=-1)
    lse[:] = highest + np.log(np.exp(scores - highest[..., None]).sum(axis=-1))
    o.reshape(d.B, d.T, d.H, -1)[:] = (np.exp(scores - lse[..., None]) @ v).transpose(0, 2, 1, 3)


def backward(d, do, qkv, o, lse, dqkv):
    q, k, v = heads_of(d, qkv)
    dq, dk, dv = heads_of(d, dqkv)
    do_heads, o_heads = (x.reshape(d.B, d.T, d.H, -1).transpose(0, 2, 1, 3) for x in (do, o))
    p = np.exp(_scores(d, q, k) - lse[..., None])
    delta = (do_heads * o_heads).sum(axis=-1, keepdims=True)
    ds = p * (do_heads @ v.swapaxes(-1, -2) - delta) * p.dtype.type((d.C // d.H) ** -0.5)
    dv[:] = p.swapaxes(-1, -2) @ do_heads
    dq[:] = ds @ k
    dk[:] = ds.swapaxes(-1, -2) @ q


@inline
def _weights_row(args, s, dp, do, o, lse, seen, D, scale):
    """s becomes P = exp(scale·s − lse) and dp becomes dS over the first `seen` columns; both 0 behind."""
    delta = cast(args, 0)
    for c in range(D):
        delta += do[c] * o[c]
    for j in range(seen):
        p = exp(s[j] * scale - lse)
        s[j] = p
        dp[j] = p * (dp[j] - delta) * scale
    for j in range(seen, s.size):
        s[j] = 0
        dp[j] = 0


def numba_forward(args, worker, workers):
    B, T, C, H = dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4)
    R, P, qkv, o, lse = dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8), dim(args, 9)
    D, size, wide = C // H, itemsize(args), 3 * C
    s = dim(args, 10) + worker * R * T * size
    panel = dim(args, 11) + worker * P * size
    scale = cast(args, 1 / np.sqrt(D))
    start, stop = share(B * H, worker, workers, 1)
    for task in range(start, stop):
        b, h = task // H, task % H
        q = qkv + (b * T * wide + h * D) * size
        out = o + (b * T * C + h * D) * size
        sums = span(args, lse, task * T, T)
        for r in range(0, T, R):
            end = min(r + R, T)
            gemm(args, end - r, end, D, q + r * wide * size, wide, 1, q + C * size, 1, wide, s, T, 0, 0, panel)
            for i in range(r, end):
                sums[i] = softmax_row(args, span(args, s, (i - r) * T, end), i + 1, scale)
            gemm(args, end - r, D, end, s, T, 1, q + 2 * C * size, wide, 1, out + r * C * size, C, 0, 0, panel)


def numba_backward(args, worker, workers):
    B, T, C, H = dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4)
    R, P = dim(args, 5), dim(args, 6)
    do, qkv, o, lse, dqkv = dim(args, 7), dim(args, 8), dim(args, 9), dim(args, 10), dim(args, 11)
    D, size, wide = C // H, itemsize(args), 3 * C
    s = dim(args, 12) + worker * R * T * size
    ds = dim(args, 13) + worker * R * T * size
    panel = dim(args, 14) + worker * P * size
    scale = cast(args, 1 / np.sqrt(D))
    start, stop = share(B * H, worker, workers, 1)
    for task in range(start, stop):
        b, h = task // H, task % H
        first = (b * T * wide + h * D) * size
        q, k, v = qkv + first, qkv + first + C * size, qkv + first + 2 * C * size
        dq, dk, dv = dqkv + first, dqkv + first + C * size, dqkv + first + 2 * C * size
        row_of_o = b * T * C + h * D
        sums = span(args, lse, task * T, T)
        for r in range(0, T, R):
            end = min(r + R, T)
            rows, at = end - r, r * wide * size
            for i in range(r, end):
                zero_k, zero_v = span(args, dk, i * wide, D), span(args, dv, i * wide, D)
                for c in range(D):
                    zero_k[c] = 0
                    zero_v[c] = 0
            dout = do + (row_of_o + r * C) * size
            gemm(args, rows, end, D, q + at, wide, 1, k, 1, wide, s, T, 0, 0, panel)
            gemm(args, rows, end, D, dout, C, 1, v, 1, wide, ds, T, 0, 0, panel)
            for i in range(rows):
                n = row_of_o + (r + i) * C
                p_row, ds_row = span(args, s, i * T, end), span(args, ds, i * T, end)
                do_row, o_row = span(args, do, n, D), span(args, o, n, D)
                _weights_row(args, p_row, ds_row, do_row, o_row, sums[r + i], r + i + 1, D, scale)
            gemm(args, rows, D, end, ds, T, 1, k, wide, 1, dq + at, wide, 0, 0, panel)
            gemm(args, end, D, rows, ds, 1, T, q + at, wide, 1, dk, wide, dk, wide, panel)
            gemm(args, end, D, rows, s, 1, T, dout, C, 1, dv, wide, dv, wide, panel)


OP = Op(
    name="tiled_attention",
    dims=("B", "T", "C", "H", "K", "P", "R"),
    inputs={"qkv": "B T 3C"},
    outputs={"o": "B T C"},
    saved={"lse": "B H T"},
    backward_reads=("qkv", "o", "lse"),
    forward_scratch={"tiles": "W P"},
    scratch={"tiles": "W R"},
    derive=scratch_sizes,
    independent_along="B",
    forward=forward,
    backward=backward,
    numba_forward=numba_forward,
    numba_backward=numba_backward,
    products=lambda d: (2 * d.B * d.T * d.T * d.C, 4 * d.B * d.T * d.T * d.C),
    pointwise=lambda d: (3 * d.B * d.H * d.T * d.T, d.B * d.T * d.T * (d.C + 4 * d.H)),
)
