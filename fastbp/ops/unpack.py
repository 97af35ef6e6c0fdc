"""A bfloat16 tensor as float32 again, which is exact: y has the 16 bits of x above 16 zeros. fastbp/ops/pack.py tells
how they came about. A schedule's Unpack runs it, no node of a graph.
"""

from __future__ import annotations

import numpy as np

from fastbp.base.late import Late
from fastbp.ops.op import Op


def forward(d, x, y):
    y[...] = (x.astype(np.uint32) << 16).view(np.float32)


OP = Op(
    name="unpack",
    dims=("N", "C"),
    inputs={"x": "N C"},
    outputs={"y": "N C"},
    backward_reads=(),
    passes_gradient=("x",),
    forward=forward,
    backward=None,
    numba_forward=Late("fastbp.kernels.unpack", "numba_forward"),
    numba_backward=None,
    pointwise=lambda d: (0, 0),
    traffic=lambda d: (-(-3 * d.N * d.C // 2), 0),
    halves=("x",),
)
