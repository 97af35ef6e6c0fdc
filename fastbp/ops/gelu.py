"""GELU, element by element, with tanh or with erf.

    tanh   y = x·σ(2u), u = √(2/π)(x + 0.044715 x³)        dy/dx = σ(2u) + x σ(2u)(1 − σ(2u))·2u'
    erf    y = x·Φ(x)                                       dy/dx = Φ(x) + x φ(x)

½(1 + tanh u) = σ(2u), so one exponential serves. Backward needs x, the pre-activation, and not y.
The trap: far below zero x·σ meets ∞·0, and far above x σ(1 − σ) does. −∞ gives 0 and slope 0, ∞ gives ∞ and slope 1.

In float32 the kernels take σ from 2^t, t = −2u·log2 e, and erf's tail from x's bell, which the slope wants too:
y = max(x, 0) − |x| e^(−x²/2) Q(|x|) with Q(a) = ½ erfc(a/√2) e^(a²/2). Nothing cancels.
Largest errors in float32 (tests/ops/test_gelu_accuracy.py): of y and of the slope as shares of max(1, |exact|), of y as
a share of |y| for x above −1 and for x in −5 … −1, where the exponent's rounding shows:
    tanh   1.8e-7   2.5e-7   3.5e-7   2.5e-6
    erf    1.4e-7   3e-7   5.8e-7   1.8e-6
Source: Hendrycks and Gimpel 2016.
"""

from __future__ import annotations

import math

import numpy as np

from fastbp.base.late import Late
from fastbp.ops.op import Op

TWICE_ROOT = 2 * math.sqrt(2 / math.pi)
CUBIC = 0.044715
FAR = 1e3
"""GELU and its slope have long been 0, x and 1 there, and no power overflows."""
scipy_erf = Late("scipy.special", "erf")


def _logistic(x):
    """σ(2u) and 2u' at x."""
    real = x.dtype.type
    x = np.clip(x, real(-FAR), real(FAR))
    with np.errstate(over="ignore"):
        sigma = 1 / (1 + np.exp(-real(TWICE_ROOT) * (x + real(CUBIC) * (x * x * x))))
        return sigma, real(TWICE_ROOT) * (1 + real(3 * CUBIC) * (x * x))


def forward(d, x, y):
    real = x.dtype.type
    y[:] = np.maximum(x, real(-FAR)) * (
        _logistic(x)[0] if d.tanh else real(0.5) * (1 + scipy_erf(x * real(math.sqrt(0.5))))
    )


def backward(d, dy, x, dx):
    real = x.dtype.type
    x = np.clip(x, real(-FAR), real(FAR))
    if d.tanh:
        sigma, slope = _logistic(x)
        dx[:] = dy * (sigma + x * sigma * (1 - sigma) * slope)
    else:
        phi = real(1 / math.sqrt(2 * math.pi)) * np.exp(real(-0.5) * (x * x))
        dx[:] = dy * (real(0.5) * (1 + scipy_erf(x * real(math.sqrt(0.5)))) + x * phi)


OP = Op(
    name="gelu",
    dims=("N", "F"),
    attributes=("tanh",),
    inputs={"x": "N F"},
    outputs={"y": "N F"},
    backward_reads=("x",),
    forward=forward,
    backward=backward,
    numba_forward=Late("fastbp.kernels.gelu", "numba_forward"),
    numba_backward=Late("fastbp.kernels.gelu", "numba_backward"),
    forward_in_place={"y": "x"},
    backward_in_place={"x": "y"},
    pointwise=lambda d: (12 * d.N * d.F, 20 * d.N * d.F),
)
