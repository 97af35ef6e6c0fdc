"""A tensor as bfloat16: the upper half of a float32's bits, for what waits from forward to backward.

    y = x rounded to 8 bits of precision, to nearest, ties to even: |y − x| ≤ 2⁻⁸·|x| for normal numbers

On the bits, as unsigned integers: y = (x + 0x7FFF + bit 16 of x) >> 16. A carry into the exponent is right, and gives ∞
above the largest bfloat16; ±∞ and ±0 stay. The trap: a NaN whose only set bits are low ones would become ∞, so a NaN
keeps its upper half and gets the quiet bit. A schedule's Pack runs it, no node of a graph; gradients pass it unchanged.
Source: Kalamkar et al. 2019, A study of bfloat16 for deep learning training.
"""

from __future__ import annotations

import numpy as np

from fastbp.base.late import Late
from fastbp.ops.op import Op


def forward(d, x, y):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    y[...] = np.where(np.isnan(x), bits >> 16 | 0x40, rounded)


OP = Op(
    name="pack",
    dims=("N", "C"),
    inputs={"x": "N C"},
    outputs={"y": "N C"},
    backward_reads=(),
    passes_gradient=("x",),
    forward=forward,
    backward=None,
    numba_forward=Late("fastbp.kernels.pack", "numba_forward"),
    numba_backward=None,
    pointwise=lambda d: (0, 0),
    traffic=lambda d: (-(-3 * d.N * d.C // 2), 0),
    halves=("y",),
)
