"""Causal attention in tiles that keeps one number a head and token, and no T × T array.

    forward   S = Q·Kᵀ/√D causal;  lse = log Σ exp S;  O = exp(S − lse)·V     blocks of queries against chunks of K keys
    backward  P = exp(S − lse) again;  dV = Pᵀ·dO;  dP = dO·Vᵀ;  δ = Σ dO∘O a row;  dS = P ∘ (dP − δ)/√D;
              dQ = dS·K;  dK = dSᵀ·Q

Saved: lse (B, H, T), 4H bytes a token in float32; backward reads q, k, v, O and lse and computes a tile's S again,
for T·C FLOPs a token. Tiles that the mask hides are skipped. Forward goes on from chunk to chunk with the largest score
so far: where it grows, what was summed is scaled down. Σ dP∘P = Σ dO∘O, so no row needs its whole dP first.
A worker's scratch holds a head's rows and tiles of K × 48 scores. fastbp/_attention.h tells how tiles lie, and
fastbp/simd/attention.py has the vector code. Forward shares blocks of heads among workers, backward heads; an element
is one chain of multiply-adds, in dK and dV in the order of the queries, and blocks and chunks depend on T alone.
Source: Dao et al. 2022, §3.1 and appendix B; Milakov and Gimelshein 2018 for the running maximum.
"""

from __future__ import annotations

import numpy as np

from fastbp.base.late import Late
from fastbp.ops.attention import heads_of
from fastbp.ops.op import Op

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


def masked_scores(d, q, k):
    """S with −∞ in the future."""
    future = np.triu(np.ones((d.T, d.T), bool), 1)
    scores = (q @ k.swapaxes(-1, -2)) * q.dtype.type((d.C // d.H) ** -0.5)
    scores[..., future] = -np.inf
    return scores


def forward(d, qkv, o, lse):
    q, k, v = heads_of(d, qkv)
    scores = masked_scores(d, q, k)
    highest = scores.max(axis=-1)
    lse[:] = highest + np.log(np.exp(scores - highest[..., None]).sum(axis=-1))
    o.reshape(d.B, d.T, d.H, -1)[:] = (np.exp(scores - lse[..., None]) @ v).transpose(0, 2, 1, 3)


def backward(d, do, qkv, o, lse, dqkv):
    q, k, v = heads_of(d, qkv)
    dq, dk, dv = heads_of(d, dqkv)
    do_heads, o_heads = (x.reshape(d.B, d.T, d.H, -1).transpose(0, 2, 1, 3) for x in (do, o))
    p = np.exp(masked_scores(d, q, k) - lse[..., None])
    delta = (do_heads * o_heads).sum(axis=-1, keepdims=True)
    ds = p * (do_heads @ v.swapaxes(-1, -2) - delta) * p.dtype.type((d.C // d.H) ** -0.5)
    dv[:] = p.swapaxes(-1, -2) @ do_heads
    dq[:] = ds @ k
    dk[:] = ds.swapaxes(-1, -2) @ q


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
    numba_forward=Late("fastbp.kernels.tiled_attention", "numba_forward"),
    numba_backward=Late("fastbp.kernels.tiled_attention", "numba_backward"),
    products=lambda d: (2 * d.B * d.T * d.T * d.C, 4 * d.B * d.T * d.T * d.C),
    pointwise=lambda d: (3 * d.B * d.H * d.T * d.T, d.B * d.T * d.T * (d.C + 4 * d.H)),
)
