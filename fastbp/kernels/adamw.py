"""The Numba kernels of `adamw`; fastbp/ops/adamw.py tells the maths and its traps."""

from __future__ import annotations

import numpy as np

from fastbp.ops.adamw import PART
from fastbp.simd.abi import cast, dim, double_span, inline, span
from fastbp.simd.gemm import share

SMALLEST_SCALE = 1e-30
"""A clipping factor below this is applied in two steps: in float32 it could be denormal, and count as 0."""


@inline
def _square_sum(g):
    total = 0.0
    for i in range(g.size):
        total += np.float64(g[i]) * np.float64(g[i])
    return total


@inline
def _shrink(args, g):
    """The first step of a tiny factor. A loop of its own: the two factors must not be multiplied first."""
    for i in range(g.size):
        g[i] *= cast(args, SMALLEST_SCALE)


@inline
def _step(args, hyper, scale, decay, p, g, m, v):
    one = cast(args, 1)
    lr, beta1, beta2, eps = cast(args, hyper[0]), cast(args, hyper[1]), cast(args, hyper[2]), cast(args, hyper[3])
    inverse1, inverse2 = cast(args, 1 / hyper[5]), cast(args, 1 / hyper[6])
    for i in range(p.size):
        gradient = g[i] * scale
        first = beta1 * m[i] + (one - beta1) * gradient
        second = beta2 * v[i] + (one - beta2) * (gradient * gradient)
        m[i] = first
        v[i] = second
        p[i] = p[i] - lr * decay * p[i] - lr * (first * inverse1) / (np.sqrt(second * inverse2) + eps)
        g[i] = 0


def numba_forward(args, worker, workers):
    phase, Z, K, Q = dim(args, 0), dim(args, 1), dim(args, 2), dim(args, 3)
    hyper = double_span(args, dim(args, 4), 0, 8)
    p, g, m, v = dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8)
    partials = double_span(args, dim(args, 9), 0, Q)
    if phase == 0:
        start, stop = share(Q, worker, workers, 1)
        for q in range(start, stop):
            partials[q] = _square_sum(span(args, g, q * PART, min(PART, Z - q * PART)))
        return
    total = 0.0
    for q in range(Q):
        total += partials[q]
    norm = np.sqrt(total)
    if worker == 0:
        double_span(args, dim(args, 10), 0, 1)[0] = norm
    if not np.isfinite(norm):
        return
    scale = min(1.0, hyper[7] / (norm + 1e-6)) if hyper[7] > 0 else 1.0
    tiny = scale < SMALLEST_SCALE
    if tiny:
        scale /= SMALLEST_SCALE
    start, stop = share(Z, worker, workers, 16)
    middle = min(max(K, start), stop)
    for part in range(2):
        a, size = (start, middle - start) if part == 0 else (middle, stop - middle)
        decay = cast(args, hyper[4] if part == 0 else 0.0)
        if tiny:
            _shrink(args, span(args, g, a, size))
        _step(
            args, hyper, cast(args, scale), decay,
            span(args, p, a, size), span(args, g, a, size), span(args, m, a, size), span(args, v, a, size),
        )  # fmt: skip
