"""A linear map of each row, with or without a bias.

    forward   y = x·weight + bias            x (N, I), weight (I, O)
    backward  dx = dy·weightᵀ                dweight += xᵀ·dy            dbias += Σ_n dy

Backward needs x for the weight's gradient and the weight for dx: two products where forward has one.
The weight lies (in, out); a square one loads transposed without complaint, so the tests compare numbers, not shapes.
"""

from __future__ import annotations

from fastbp.ops.op import Op
from fastbp.simd.abi import add, dim, inline, itemsize, span
from fastbp.simd.gemm import share, shared_gemm
from fastbp.simd.target import panel_elements


def forward(d, x, weight, bias, y):
    y[:] = x @ weight
    if bias is not None:
        y += bias


def backward(d, dy, x, weight, dx, dweight, dbias):
    dx[:] = dy @ weight.T
    dweight += x.T @ dy
    if dbias is not None:
        dbias += dy.sum(axis=0)


@inline
def add_columns(args, worker, workers, rows, columns, dy, dy_row, dbias):
    """dbias += Σ_n dy[n], a worker's share of the columns, in the order of the rows."""
    start, stop = share(columns, worker, workers, 64 // itemsize(args))
    total = span(args, dbias, start, stop - start)
    for n in range(rows):
        add(span(args, dy, n * dy_row + start, stop - start), total, stop - start)


def numba_forward(args, worker, workers):
    N, I, O, P = dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4)
    x, weight, bias, y = dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8)
    panel = dim(args, 9) + worker * P * itemsize(args)
    shared_gemm(args, worker, workers, N, O, I, x, I, 1, weight, O, 1, y, O, bias, 0, panel)


def numba_backward(args, worker, workers):
    N, I, O, P = dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4)
    dy, x, weight = dim(args, 5), dim(args, 6), dim(args, 7)
    dx, dweight, dbias = dim(args, 8), dim(args, 9), dim(args, 10)
    panel = dim(args, 11) + worker * P * itemsize(args)
    shared_gemm(args, worker, workers, N, I, O, dy, O, 1, weight, 1, O, dx, I, 0, 0, panel)
    shared_gemm(args, worker, workers, I, O, N, x, 1, I, dy, O, 1, dweight, O, dweight, O, panel)
    if dbias:
        add_columns(args, worker, workers, N, O, dy, O, dbias)


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
    numba_forward=numba_forward,
    numba_backward=numba_backward,
    products=lambda d: (2 * d.N * d.I * d.O, 4 * d.N * d.I * d.O),
    pointwise=lambda d: (d.N * d.O, d.N * d.O),
)
