"""The causal softmax of scaled scores, row by row.

    forward   p[n, j] = exp(scale·s[n, j] − m) / Σ_{k ≤ n mod T} exp(scale·s[n, k] − m)  for j ≤ n mod T, else 0
    backward  ds = scale · p ∘ (dp − Σ_k dp_k p_k)

Saved: nothing but the output p. m is the largest of scale·s, so that no exponential overflows; s less its largest comes
before the scale, since one rounding of scale·s − m can leave it above 0.
The trap: a score's gradient is its weight times how much better than *average* its value was; without the sum the
gradient looks plausible and is wrong. Future positions have p = 0, so they get exactly 0 back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastbp.base.late import Late
from fastbp.ops.op import Op


@dataclass(frozen=True)
class Row:
    """What the definition needs to know: the columns and the scale."""

    T: int
    scale: float


def forward(d, s, p):
    future = np.arange(d.T) > np.arange(s.shape[-2])[:, None] % d.T
    scores = np.where(future, s.dtype.type(-np.inf), s * s.dtype.type(d.scale))
    np.exp(scores - scores.max(axis=-1, keepdims=True), out=p)
    p /= p.sum(axis=-1, keepdims=True)


def backward(d, dp, p, ds):
    ds[:] = p * (dp - (dp * p).sum(axis=-1, keepdims=True)) * p.dtype.type(d.scale)


OP = Op(
    name="softmax",
    dims=("N", "T"),
    attributes=("scale",),
    inputs={"s": "N T"},
    outputs={"p": "N T"},
    backward_reads=("p",),
    forward=forward,
    backward=backward,
    numba_forward=Late("fastbp.kernels.softmax", "numba_forward"),
    numba_backward=Late("fastbp.kernels.softmax", "numba_backward"),
    forward_in_place={"p": "s"},
    backward_in_place={"s": "p"},
    pointwise=lambda d: (5 * d.N * d.T, 4 * d.N * d.T),
)
