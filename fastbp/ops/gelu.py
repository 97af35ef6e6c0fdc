"""GELU, element by element, with tanh or with erf.

    tanh   y = x·σ(2u), u = √(2/π)(x + 0.044715 x³)        dy/dx = σ(2u) + x σ(2u)(1 − σ(2u))·2u'
    erf    y = x·Φ(x)                                       dy/dx = Φ(x) + x φ(x)

½(1 + tanh u) = σ(2u), so one exponential serves. Backward needs x, the pre-activation, and not y.
The trap: far below zero x·σ meets 0·∞ where the exponential overflows; 1/(1 + ∞) is 0 and the products stay 0.
Source: Hendrycks and Gimpel 2016.
"""

from __future__ import annotations

import math

import numpy as np

from fastbp.base.late import Late
from fastbp.ops.op import Op
from fastbp.simd.abi import cast, copy, dim, inline, number, span
from fastbp.simd.gemm import share
from fastbp.simd.math import erf, exp

TWICE_ROOT = 2 * math.sqrt(2 / math.pi)
CUBIC = 0.044715
scipy_erf = Late("scipy.special", "erf")


def _logistic(x):
    """σ(2u) and 2u' at x."""
    real = x.dtype.type
    with np.errstate(over="ignore"):
        sigma = 1 / (1 + np.exp(-real(TWICE_ROOT) * (x + real(CUBIC) * (x * x * x))))
        return sigma, real(TWICE_ROOT) * (1 + real(3 * CUBIC) * (x * x))


def forward(d, x, y):
    real = x.dtype.type
    y[:] = x * (_logistic(x)[0] if d.tanh else real(0.5) * (1 + scipy_erf(x * real(math.sqrt(0.5)))))


def backward(d, dy, x, dx):
    real = x.dtype.type
    if d.tanh:
        sigma, slope = _logistic(x)
        dx[:] = dy * (sigma + x * sigma * (1 - sigma) * slope)
    else:
        phi = real(1 / math.sqrt(2 * math.pi)) * np.exp(real(-0.5) * (x * x))
        dx[:] = dy * (real(0.5) * (1 + scipy_erf(x * real(math.sqrt(0.5)))) + x * phi)


@inline
def _forward_tanh(args, x, y, size):
    one, root, cubic = cast(args, 1), cast(args, -TWICE_ROOT), cast(args, CUBIC)
    for i in range(size):
        y[i] = x[i] / (one + exp(root * (x[i] + cubic * (x[i] * x[i] * x[i]))))


@inline
def _forward_erf(args, x, y, size):
    one, half, root = cast(args, 1), cast(args, 0.5), cast(args, math.sqrt(0.5))
    for i in range(size):
        y[i] = x[i] * (half * (one + erf(x[i] * root)))


@inline
def _slope_tanh(args, x, dx, size):
    one, root, cubic, thrice = cast(args, 1), cast(args, TWICE_ROOT), cast(args, CUBIC), cast(args, 3 * CUBIC)
    for i in range(size):
        sigma = one / (one + exp(-root * (x[i] + cubic * (x[i] * x[i] * x[i]))))
        slope = root * (one + thrice * (x[i] * x[i]))
        dx[i] *= sigma + x[i] * sigma * (one - sigma) * slope


@inline
def _slope_erf(args, x, dx, size):
    one, half, root = cast(args, 1), cast(args, 0.5), cast(args, math.sqrt(0.5))
    density = cast(args, 1 / math.sqrt(2 * math.pi))
    for i in range(size):
        phi = density * exp(-half * (x[i] * x[i]))
        dx[i] *= half * (one + erf(x[i] * root)) + x[i] * phi


def numba_forward(args, worker, workers):
    start, stop = share(dim(args, 1) * dim(args, 2), worker, workers, 16)
    size = stop - start
    x, y = span(args, dim(args, 4), start, size), span(args, dim(args, 5), start, size)
    if number(args, 3) != 0:
        _forward_tanh(args, x, y, size)
    else:
        _forward_erf(args, x, y, size)


def numba_backward(args, worker, workers):
    start, stop = share(dim(args, 1) * dim(args, 2), worker, workers, 16)
    size = stop - start
    x, dx = span(args, dim(args, 5), start, size), span(args, dim(args, 6), start, size)
    if dim(args, 4) != dim(args, 6):
        copy(span(args, dim(args, 4), start, size), dx, size)
    if number(args, 3) != 0:
        _slope_tanh(args, x, dx, size)
    else:
        _slope_erf(args, x, dx, size)


OP = Op(
    name="gelu",
    dims=("N", "F"),
    attributes=("tanh",),
    inputs={"x": "N F"},
    outputs={"y": "N F"},
    backward_reads=("x",),
    forward=forward,
    backward=backward,
    numba_forward=numba_forward,
    numba_backward=numba_backward,
    forward_in_place={"y": "x"},
    backward_in_place={"x": "y"},
    pointwise=lambda d: (12 * d.N * d.F, 20 * d.N * d.F),
)
