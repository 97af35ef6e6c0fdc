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

from fastbp.ops.op import Op
from fastbp.simd.abi import cast, copy, dim, inline, number, span
from fastbp.simd.gemm import share
from fastbp.simd.math import exp_scaled
from fastbp.simd.vector import map_and_sum, row_largest


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


_exp_row = map_and_sum(lambda x, scale, highest: exp_scaled(x - highest, scale))


@inline
def exp_and_sum(args, p, size, scale):
    """p = exp(scale·(p − m)) over the first `size` columns, m their largest; returns m and Σ p."""
    at = p.ctypes.data
    highest = row_largest(args, at, size)
    return highest, _exp_row(args, at, at, size, scale, highest)


@inline
def softmax_row(args, p, seen, scale):
    """p = softmax(scale · p) over the first `seen` columns, 0 behind; returns log Σ exp(scale · p)."""
    highest, total = exp_and_sum(args, p, seen, scale)
    inverse = cast(args, 1) / total
    for j in range(seen):
        p[j] *= inverse
    for j in range(seen, p.size):
        p[j] = 0
    return highest * scale + np.log(total)


@inline
def softmax_backward_row(args, p, ds, size, scale):
    """ds = scale · p ∘ (ds − Σ ds·p) over the first `size` columns, where ds came as dp."""
    total = cast(args, 0)
    for j in range(size):
        total += ds[j] * p[j]
    for j in range(size):
        ds[j] = p[j] * (ds[j] - total) * scale


def numba_forward(args, worker, workers):
    N, T, scale = dim(args, 1), dim(args, 2), number(args, 3)
    s, p = dim(args, 4), dim(args, 5)
    start, stop = share(N, worker, workers, 1)
    for n in range(start, stop):
        row = span(args, p, n * T, T)
        if s != p:
            copy(span(args, s, n * T, T), row, T)
        softmax_row(args, row, n % T + 1, scale)


def numba_backward(args, worker, workers):
    N, T, scale = dim(args, 1), dim(args, 2), number(args, 3)
    dp, p, ds = dim(args, 4), dim(args, 5), dim(args, 6)
    start, stop = share(N, worker, workers, 1)
    for n in range(start, stop):
        row = span(args, ds, n * T, T)
        if dp != ds:
            copy(span(args, dp, n * T, T), row, T)
        softmax_backward_row(args, span(args, p, n * T, T), row, T, scale)


OP = Op(
    name="softmax",
    dims=("N", "T"),
    attributes=("scale",),
    inputs={"s": "N T"},
    outputs={"p": "N T"},
    backward_reads=("p",),
    forward=forward,
    backward=backward,
    numba_forward=numba_forward,
    numba_backward=numba_backward,
    forward_in_place={"p": "s"},
    backward_in_place={"s": "p"},
    pointwise=lambda d: (5 * d.N * d.T, 4 * d.N * d.T),
)
