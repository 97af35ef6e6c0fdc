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

from fastbp.base.late import Late
from fastbp.ops import softmax
from fastbp.ops.op import Op
from fastbp.simd.scratch import panel_elements

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


def scaled(d):
    """What softmax needs to know of a head."""
    return softmax.Row(d.T, (d.C // d.H) ** -0.5)


def forward(d, qkv, o, p):
    q, k, v = heads_of(d, qkv)
    softmax.forward(scaled(d), q @ k.swapaxes(-1, -2), p)
    o.reshape(d.B, d.T, d.H, -1)[:] = (p @ v).transpose(0, 2, 1, 3)


def backward(d, do, qkv, p, dqkv):
    q, k, v = heads_of(d, qkv)
    dq, dk, dv = heads_of(d, dqkv)
    do_heads = do.reshape(d.B, d.T, d.H, -1).transpose(0, 2, 1, 3)
    scores = np.empty_like(p)
    softmax.backward(scaled(d), do_heads @ v.swapaxes(-1, -2), p, scores)
    dv[:] = p.swapaxes(-1, -2) @ do_heads
    dq[:] = scores @ k
    dk[:] = scores.swapaxes(-1, -2) @ q


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
    numba_forward=Late("fastbp.kernels.attention", "numba_forward"),
    numba_backward=Late("fastbp.kernels.attention", "numba_backward"),
    products=lambda d: (2 * d.B * d.T * d.T * d.C, 4 * d.B * d.T * d.T * d.C),
    pointwise=lambda d: (3 * d.B * d.H * d.T * d.T, 2 * d.B * d.H * d.T * d.T),
)
