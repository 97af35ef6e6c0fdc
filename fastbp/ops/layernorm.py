"""Layer normalisation of each row.

    forward   x̂ = (x − μ)·r with r = 1/√(σ² + eps);  y = x̂ ∘ weight + bias
    backward  g = dy ∘ weight;  dx = r (g − mean(g) − x̂ mean(g ∘ x̂));  dweight += Σ_n dy ∘ x̂;  dbias += Σ_n dy

Saved: mean and rstd, 8 bytes a row in float32; x̂ comes back from them and x for less than it costs to keep.
The trap: dx is a projection, orthogonal to 1 and to x̂ where weight is 1; leaving out either mean looks almost right.
The sums over rows run in the order of the rows, one chain a column; workers share the columns.
Source: Ba, Kiros and Hinton 2016.
"""

from __future__ import annotations

import numpy as np

from fastbp.base.late import Late
from fastbp.ops.op import Op


def forward(d, x, weight, bias, y, mean, rstd):
    x.mean(axis=1, out=mean)
    y[:] = x - mean[:, None]
    rstd[:] = 1 / np.sqrt((y * y).mean(axis=1) + d.eps)
    y *= rstd[:, None]
    y *= weight
    y += bias


def backward(d, dy, x, weight, mean, rstd, dx, dweight, dbias):
    x_hat = (x - mean[:, None]) * rstd[:, None]
    dweight += (dy * x_hat).sum(axis=0)
    dbias += dy.sum(axis=0)
    g = dy * weight
    along = (g * x_hat).mean(axis=1, keepdims=True)
    dx[:] = (g - g.mean(axis=1, keepdims=True) - x_hat * along) * rstd[:, None]


OP = Op(
    name="layernorm",
    dims=("N", "C"),
    attributes=("eps",),
    inputs={"x": "N C"},
    params={"weight": "C", "bias": "C"},
    outputs={"y": "N C"},
    saved={"mean": "N", "rstd": "N"},
    backward_reads=("x", "weight", "mean", "rstd"),
    forward=forward,
    backward=backward,
    numba_forward=Late("fastbp.kernels.layernorm", "numba_forward"),
    numba_backward=Late("fastbp.kernels.layernorm", "numba_backward"),
    pointwise=lambda d: (8 * d.N * d.C, 14 * d.N * d.C),
)
