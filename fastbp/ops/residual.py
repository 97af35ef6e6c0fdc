"""The residual stream: what a sublayer adds to it.

    forward   y = x + f
    backward  dx = dy;  df = dy

Backward is the identity to both inputs, so there is no backward kernel: both gradients *are* dy's buffer, read by the
sublayer first; then the sublayer's own gradient is added to it, which makes it the gradient of x.
The forward kernel does that addition too.
"""

from __future__ import annotations

import numpy as np

from fastbp.base.late import Late
from fastbp.ops.op import Op


def forward(d, x, f, y):
    np.add(x, f, out=y)


OP = Op(
    name="residual",
    dims=("N", "C"),
    inputs={"x": "N C", "f": "N C"},
    outputs={"y": "N C"},
    backward_reads=(),
    passes_gradient=("x", "f"),
    forward=forward,
    backward=None,
    numba_forward=Late("fastbp.kernels.residual", "numba_forward"),
    numba_backward=None,
    forward_in_place={"y": "f"},
    pointwise=lambda d: (d.N * d.C, d.N * d.C),
)
