"""The tied head with cross-entropy as one op: logits exist only for the rows of a slice.

    forward   z = x·weightᵀ;  losses[n] = log Σ_v exp z[n, v] − z[n, target[n]]
    backward  dz = (softmax(z) − onehot(target)) · dlosses[n];  dx = dz·weight;  dweight += dzᵀ·x

Nothing is saved: backward brings the logits back in scratch and yields the losses on its way, so a training schedule
has no forward of this op at all and pays for the logits once. dlosses carries each row's share of the mean. The weight
is the token table (V, C): its gradient comes here and again at the lookup. The compiled kernels hold z transposed.
"""

from __future__ import annotations

import numpy as np

from fastbp.base.late import Late
from fastbp.ops.op import Op
from fastbp.simd.scratch import panel_elements


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
            panel_elements(d.C, d.N, d.V), panel_elements(d.V, d.C, d.N, by_columns=True), panel_elements(d.N, d.C, d.V)
        ),
    },
    forward_phases=2,
    backward_phases=3,
    backward_yields_outputs=True,
    forward=forward,
    backward=backward,
    numba_forward=Late("fastbp.kernels.linear_cross_entropy", "numba_forward"),
    numba_backward=Late("fastbp.kernels.linear_cross_entropy", "numba_backward"),
    products=lambda d: (2 * d.N * d.C * d.V, 4 * d.N * d.C * d.V),
    pointwise=lambda d: (5 * d.N * d.V, 7 * d.N * d.V),
)
