"""AdamW in one pass over all parameters, after clipping by the global norm.

    norm = √Σ g²  in float64, in parts of 4,096 added in order;   g ← g · min(1, clip/(norm + 1e-6))  where clip > 0
    m ← β1 m + (1 − β1) g;   v ← β2 v + (1 − β2) g²
    p ← p − lr·decay·p − lr (m/(1 − β1^t)) / (√(v/(1 − β2^t)) + eps);   g ← 0

Parameters lie in one flat buffer, the K elements that decay (tensors of two or more dimensions) first. The scalars come
in `hyper` = (lr, β1, β2, eps, decay, 1 − β1^t, 1 − β2^t, clip). Where the norm is not finite nothing is changed, so
that the culprit can be found: the trap is a single NaN that spreads over every weight. Source: Loshchilov and Hutter
2019, algorithm 2.
"""

from __future__ import annotations

import math

import numpy as np

from fastbp.base.late import Late
from fastbp.ops.op import Op

PART = 4096
"""Elements in a part of the norm's sum: its order does not depend on the number of workers."""


def forward(d, hyper, p, g, m, v, partials, norm):
    for q in range(d.Q):
        part = g[q * PART : (q + 1) * PART].astype(np.float64)
        partials[q] = part @ part
    norm[0] = math.sqrt(math.fsum(partials)) if np.isfinite(partials).all() else math.nan
    if not math.isfinite(norm[0]):
        return
    real = p.dtype.type
    lr, beta1, beta2, eps, decay, correction1, correction2, clip = (real(x) for x in hyper)
    if clip > 0:
        g *= real(min(1.0, hyper[7] / (norm[0] + 1e-6)))
    m[:] = beta1 * m + (1 - beta1) * g
    v[:] = beta2 * v + (1 - beta2) * (g * g)
    p[: d.K] -= lr * decay * p[: d.K]
    p -= lr * (m / correction1) / (np.sqrt(v / correction2) + eps)
    g[:] = 0


OP = Op(
    name="adamw",
    dims=("Z", "K", "Q"),
    inputs={"hyper": "8", "p": "Z", "g": "Z", "m": "Z", "v": "Z", "partials": "Q"},
    integers=(),
    outputs={"norm": "1"},
    doubles=("hyper", "partials", "norm"),
    derive=lambda d: {"Q": -(-d.Z // PART)},
    backward_reads=(),
    forward_phases=2,
    forward=forward,
    backward=None,
    numba_forward=Late("fastbp.kernels.adamw", "numba_forward"),
    numba_backward=None,
    pointwise=lambda d: (16 * d.Z, 0),
    traffic=lambda d: (9 * d.Z, 0),  # the norm reads g; the step reads and writes p, g, m and v
)
