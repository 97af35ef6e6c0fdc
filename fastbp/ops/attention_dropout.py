"""`attention` with dropout of its weights.

    forward   O = (P ∘ M)·V
    backward  dV = (P ∘ M)ᵀ·dO;  dP = M ∘ (dO·Vᵀ);  the rest as in attention

M is that of fastbp/ops/dropout.py: row i of head h of sequence b is row (b·H + h)·T + i, a key is a column. Saved is p
as the softmax left it: its backward needs what M left out, too. A worker's scratch holds P ∘ M of a band.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fastbp.base.late import Late
from fastbp.ops import attention, softmax
from fastbp.ops.attention import heads_of, scaled
from fastbp.ops.dropout import factors


def weight_factors(d, state, dtype):
    """M of all weights: (B, H, T, T)."""
    first_row, rows = d.S * d.H * d.T, d.B * d.H * d.T
    return factors(d, state, first_row, (rows, d.T), dtype).reshape(d.B, d.H, d.T, d.T)


def forward(d, qkv, state, o, p):
    q, k, v = heads_of(d, qkv)
    softmax.forward(scaled(d), q @ k.swapaxes(-1, -2), p)
    kept = p * weight_factors(d, state, p.dtype)
    o.reshape(d.B, d.T, d.H, -1)[:] = (kept @ v).transpose(0, 2, 1, 3)


def backward(d, do, qkv, state, p, dqkv):
    q, k, v = heads_of(d, qkv)
    dq, dk, dv = heads_of(d, dqkv)
    do_heads = do.reshape(d.B, d.T, d.H, -1).transpose(0, 2, 1, 3)
    mask, scores = weight_factors(d, state, p.dtype), np.empty_like(p)
    softmax.backward(scaled(d), mask * (do_heads @ v.swapaxes(-1, -2)), p, scores)
    dv[:] = (p * mask).swapaxes(-1, -2) @ do_heads
    dq[:] = scores @ k
    dk[:] = scores.swapaxes(-1, -2) @ q


OP = replace(
    attention.OP,
    name="attention_dropout",
    dims=(*attention.OP.dims, "S"),
    attributes=("rate", "place"),
    inputs={"qkv": "B T 3C", "state": "2"},
    integers=("state",),
    backward_reads=("qkv", "state", "p"),
    forward_scratch={"kept": "W R T", "panel": "W P"},
    forward=forward,
    backward=backward,
    numba_forward=Late("fastbp.kernels.attention", "numba_dropout_forward"),
    numba_backward=Late("fastbp.kernels.attention", "numba_dropout_backward"),
)
