"""`tiled_attention` with dropout of its weights.

    forward   O = (exp(S − lse) ∘ M)·V
    backward  dV = (P ∘ M)ᵀ·dO;  dS = P ∘ (M ∘ dP − δ)/√D with dP = dO·Vᵀ;  the rest as in tiled_attention

M is that of attention_dropout; a tile's is worked out where the tile is. lse is that of all weights. δ = Σ dO∘O a row
is still what the softmax's gradient takes away: O is made of P ∘ M, so Σ dO∘O = Σ P∘M∘dP.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fastbp.base.late import Late
from fastbp.ops import tiled_attention
from fastbp.ops.attention import heads_of
from fastbp.ops.attention_dropout import weight_factors
from fastbp.ops.tiled_attention import masked_scores


def forward(d, qkv, state, o, lse):
    tiled_attention.forward(d, qkv, o, lse)
    q, k, v = heads_of(d, qkv)
    kept = np.exp(masked_scores(d, q, k) - lse[..., None]) * weight_factors(d, state, lse.dtype)
    o.reshape(d.B, d.T, d.H, -1)[:] = (kept @ v).transpose(0, 2, 1, 3)


def backward(d, do, qkv, state, o, lse, dqkv):
    q, k, v = heads_of(d, qkv)
    dq, dk, dv = heads_of(d, dqkv)
    do_heads, o_heads = (x.reshape(d.B, d.T, d.H, -1).transpose(0, 2, 1, 3) for x in (do, o))
    p, mask = np.exp(masked_scores(d, q, k) - lse[..., None]), weight_factors(d, state, lse.dtype)
    delta = (do_heads * o_heads).sum(axis=-1, keepdims=True)
    ds = p * (mask * (do_heads @ v.swapaxes(-1, -2)) - delta) * p.dtype.type((d.C // d.H) ** -0.5)
    dv[:] = (p * mask).swapaxes(-1, -2) @ do_heads
    dq[:] = ds @ k
    dk[:] = ds.swapaxes(-1, -2) @ q


OP = replace(
    tiled_attention.OP,
    name="tiled_attention_dropout",
    dims=(*tiled_attention.OP.dims, "S"),
    attributes=("rate", "place"),
    inputs={"qkv": "B T 3C", "state": "2"},
    integers=("state",),
    backward_reads=("qkv", "state", "o", "lse"),
    forward=forward,
    backward=backward,
    numba_forward=Late("fastbp.kernels.tiled_attention", "numba_dropout_forward"),
    numba_backward=Late("fastbp.kernels.tiled_attention", "numba_dropout_backward"),
)
