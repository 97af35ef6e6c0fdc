"""The tied head with cross-entropy as one op: logits exist only for the rows of a slice.

    forward   z = x·weightᵀ;  losses[n] = log Σ_v exp z[n, v] − z[n, target[n]]
    backward  dz = (softmax(z) − onehot(target)) · dlosses[n];  dx = dz·weight;  dweight += dzᵀ·x

Nothing is saved: backward brings the logits back in scratch and yields the losses on its way, so a training schedule
has no forward of this op at all and pays for the logits once. dlosses carries each row's share of the mean. The weight
is the token table (V, C): its gradient comes here and again at the lookup.
"""

from __future__ import annotations

import numpy as np

from fastbp.ops.op import Op
from fastbp.simd.abi import cast, dim, inline, int_span, itemsize, span
from fastbp.simd.gemm import share, shared_gemm
from fastbp.simd.math import exp
from fastbp.simd.target import panel_elements


def _softmax(z, targets, losses):
    """z becomes softmax(z); losses are filled."""
    rows = np.arange(len(targets))
    z -= z.max(axis=1, keepdims=True)
    at_target = z[rows, targets]
    np.exp(z, out=z)
    total = z.sum(axis=1, keepdims=True)
    losses[:] = np.log(total[:, 0]) - at_target
    z /= total


def forward(d, x, targets, weight, losses, z):
    z[:] = x @ weight.T
    _softmax(z, targets, losses)


def backward(d, dlosses, x, targets, weight, dx, dweight, z, losses):
    z[:] = x @ weight.T
    _softmax(z, targets, losses)
    z[np.arange(len(targets)), targets] -= 1
    z *= dlosses[:, None]
    dx[:] = z @ weight
    dweight += z.T @ x


@inline
def _softmax_row(args, z, target):
    """z becomes softmax(z); returns the row's loss."""
    highest = cast(args, -np.inf)
    for v in range(z.size):
        highest = max(highest, z[v])
    at_target = z[target] - highest
    for v in range(z.size):
        z[v] = exp(z[v] - highest)
    total = cast(args, 0)
    for v in range(z.size):
        total += z[v]
    inverse = cast(args, 1) / total
    for v in range(z.size):
        z[v] *= inverse
    return np.log(total) - at_target


def numba_forward(args, worker, workers):
    phase, N, C, V, P = dim(args, 0), dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4)
    x, targets, weight, losses, z = dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8), dim(args, 9)
    panel = dim(args, 10) + worker * P * itemsize(args)
    if phase == 0:
        shared_gemm(args, worker, workers, N, V, C, x, C, 1, weight, 1, C, z, V, 0, 0, panel)
    else:
        start, stop = share(N, worker, workers, 1)
        for n in range(start, stop):
            target = int_span(args, targets, n, 1)[0]
            span(args, losses, n, 1)[0] = _softmax_row(args, span(args, z, n * V, V), target)


@inline
def _scale(row, factor):
    for v in range(row.size):
        row[v] *= factor


def numba_backward(args, worker, workers):
    phase, N, C, V, P = dim(args, 0), dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4)
    dlosses, x, targets, weight = dim(args, 5), dim(args, 6), dim(args, 7), dim(args, 8)
    dx, dweight, z, losses = dim(args, 9), dim(args, 10), dim(args, 11), dim(args, 13)
    panel = dim(args, 12) + worker * P * itemsize(args)
    if phase == 0:
        shared_gemm(args, worker, workers, N, V, C, x, C, 1, weight, 1, C, z, V, 0, 0, panel)
    elif phase == 1:
        start, stop = share(N, worker, workers, 1)
        for n in range(start, stop):
            target = int_span(args, targets, n, 1)[0]
            row = span(args, z, n * V, V)
            span(args, losses, n, 1)[0] = _softmax_row(args, row, target)
            row[target] -= cast(args, 1)
            _scale(row, span(args, dlosses, n, 1)[0])
    else:
        shared_gemm(args, worker, workers, N, C, V, z, V, 1, weight, C, 1, dx, C, 0, 0, panel)
        shared_gemm(args, worker, workers, V, C, N, z, 1, V, x, C, 1, dweight, C, dweight, C, panel)


OP = Op(
    name="linear_cross_entropy",
    dims=("N", "C", "V", "P"),
    inputs={"x": "N C", "targets": "N"},
    integers=("targets",),
    params={"weight": "V C"},
    outputs={"losses": "N"},
    backward_reads=("x", "targets", "weight"),
    forward_scratch={"z": "N V", "panel": "W P"},
    scratch={"z": "N V", "panel": "W P"},
    derive=lambda d: {
        "P": max(
            panel_elements(d.C, d.V, d.N), panel_elements(d.V, d.C, d.N), panel_elements(d.N, d.C, d.V, by_columns=True)
        ),
    },
    forward_phases=2,
    backward_phases=3,
    backward_yields_outputs=True,
    forward=forward,
    backward=backward,
    numba_forward=numba_forward,
    numba_backward=numba_backward,
    products=lambda d: (2 * d.N * d.C * d.V, 4 * d.N * d.C * d.V),
    pointwise=lambda d: (5 * d.N * d.V, 7 * d.N * d.V),
)
