"""A linear map of each row, with or without a bias.

    forward   y = x·weight + bias            x (N, I), weight (I, O)
    backward  dx = dy·weightᵀ                dweight += xᵀ·dy            dbias += Σ_n dy

Backward needs x for the weight's gradient and the weight for dx: two products where forward has one.
The weight lies (in, out); a square one loads transposed without complaint, so the tests compare numbers, not shapes.
"""

from __future__ import annotations

from fastbp.base.late import Late
from fastbp.ops.op import Op
from fastbp.simd.scratch import panel_elements


def forward(d, x, weight, bias, y):
    y[:] = x @ weight
    if bias is not None:
        y += bias


def backward(d, dy, x, weight, dx, dweight, dbias):
    dx[:] = dy @ weight.T
    dweight += x.T @ dy
    if dbias is not None:
        dbias += dy.sum(axis=0)


OP = Op(
    name="linear",
    dims=("N", "I", "O", "P"),
    inputs={"x": "N I"},
    params={"weight": "I O", "bias": "O"},
    optional=("bias",),
    outputs={"y": "N O"},
    backward_reads=("x", "weight"),
    forward_scratch={"panel": "W P"},
    scratch={"panel": "W P"},
    derive=lambda d: {
        "P": max(
            panel_elements(d.I, d.O, d.N), panel_elements(d.O, d.I, d.N), panel_elements(d.N, d.O, d.I, by_columns=True)
        ),
    },
    forward=forward,
    backward=backward,
    numba_forward=Late("fastbp.kernels.linear", "numba_forward"),
    numba_backward=Late("fastbp.kernels.linear", "numba_backward"),
    products=lambda d: (2 * d.N * d.I * d.O, 4 * d.N * d.I * d.O),
    pointwise=lambda d: (d.N * d.O, d.N * d.O),
)
