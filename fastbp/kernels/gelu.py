"""The Numba kernels of `gelu`; fastbp/ops/gelu.py tells the maths and its traps."""

from __future__ import annotations

import math

from fastbp.ops.gelu import CUBIC, FAR, TWICE_ROOT
from fastbp.simd.abi import dim, inline, itemsize, number
from fastbp.simd.gemm import share
from fastbp.simd.math import LOG2_E, exp2, polynomial, reciprocal
from fastbp.simd.vector import Vector, elementwise

DENSITY = 1 / math.sqrt(2 * math.pi)
FARTHEST = 126.0
"""σ < 2^−126 counts as 0 in float32."""
INT32_MAX = 2**31 - 1


def _exponent(x: Vector, square: Vector) -> Vector:
    """−2u·log2 e."""
    return x * (square * (-TWICE_ROOT * LOG2_E * CUBIC) - TWICE_ROOT * LOG2_E)


def _logistic_of(x: Vector) -> Vector:
    """σ(2u) in float64."""
    return 1.0 / (1.0 + ((x + CUBIC * (x * x * x)) * -TWICE_ROOT).each_lane("exp"))


def tanh_forward(x: Vector) -> Vector:
    if not x.single:
        return x.at_least(-FAR) * _logistic_of(x)
    t = _exponent(x, x * x)
    return (x * reciprocal(1.0 + exp2(t))).zero_where(t.above(FARTHEST))


def tanh_backward(dy: Vector, x: Vector) -> Vector:
    if not x.single:
        a = x.at_least(-FAR).at_most(FAR)
        sigma = _logistic_of(a)
        return dy * (sigma + a * sigma * (1.0 - sigma) * (TWICE_ROOT * (1.0 + 3 * CUBIC * (a * a))))
    a = x.at_most(16.0)  # the slope is 1 from 6 on; ∞ would meet 0
    square = a * a
    t = _exponent(a, square)
    e = exp2(t)
    sigma = reciprocal(1.0 + e)
    slope = square * (TWICE_ROOT * 3 * CUBIC) + TWICE_ROOT
    return (dy * (sigma + (sigma * (e * sigma)) * (a * slope))).zero_where(t.above(FARTHEST))  # 1 − σ = e σ


def _tail(a: Vector) -> Vector:
    """½ erfc(a/√2) exp(a²/2) for a in 0 … 13, 9.4e-8 relative."""
    t = reciprocal(1.0 + 0.305 * a)
    return t * polynomial(
        t, 0.036699190735816956, -0.15298829972743988, 0.18571688234806061, -0.037976793944835663, 0.12102165073156357,
        0.10342087596654892, 0.12246681749820709, 0.12163973599672318,
    )  # fmt: skip


def _distance(x: Vector) -> Vector:
    """|x|, at most 16: nothing is left of exp(−x²/2) there."""
    words = x.words
    return x.from_words(x.builder.and_(words, words.type([INT32_MAX] * x.count))).at_most(16.0)


def _bell(a: Vector) -> Vector:
    """exp(−a²/2)."""
    return exp2(a * a * (-0.5 * LOG2_E))


def _normal(x: Vector) -> Vector:
    """Φ(x) in float64."""
    return 0.5 * (1.0 + (x * math.sqrt(0.5)).each_lane("erf"))


def erf_forward(x: Vector) -> Vector:
    if not x.single:
        return x.at_least(-FAR) * _normal(x)
    a = _distance(x)
    return x.at_least(0.0) - (a * _bell(a)) * _tail(a)


def erf_backward(dy: Vector, x: Vector) -> Vector:
    if not x.single:
        a = x.at_least(-FAR).at_most(FAR)
        return dy * (_normal(a) + a * (DENSITY * (-0.5 * (a * a)).each_lane("exp")))
    a, builder, kind = _distance(x), x.builder, x.words.type
    beyond = _bell(a) * (a * DENSITY - _tail(a))  # the slope at a, less 1
    sign = builder.and_(x.words, kind([-(2**31)] * x.count))
    step = builder.and_(builder.not_(builder.ashr(x.words, kind([31] * x.count))), x.splat(1.0).words)
    return dy * (x.from_words(builder.xor(beyond.words, sign)) + x.from_words(step))  # slopes at x and −x sum to 1


_tanh_row, _tanh_backward_row = elementwise(tanh_forward), elementwise(tanh_backward)
_erf_row, _erf_backward_row = elementwise(erf_forward), elementwise(erf_backward)


@inline
def gelu_rows(args, by_tanh, x, x_row, y, y_row, rows, columns):
    """y = gelu(x), row by row, at addresses; a row starts `x_row` and `y_row` bytes behind the one before. y may be
    x."""
    for n in range(rows):
        if by_tanh:
            _tanh_row(args, x + n * x_row, y + n * y_row, columns)
        else:
            _erf_row(args, x + n * x_row, y + n * y_row, columns)


@inline
def gelu_backward_rows(args, by_tanh, dy, dy_row, x, x_row, dx, dx_row, rows, columns):
    """dx = dy ∘ gelu'(x), row by row, strides as above. dx may be dy or x."""
    for n in range(rows):
        if by_tanh:
            _tanh_backward_row(args, dy + n * dy_row, x + n * x_row, dx + n * dx_row, columns)
        else:
            _erf_backward_row(args, dy + n * dy_row, x + n * x_row, dx + n * dx_row, columns)


def numba_forward(args, worker, workers):
    start, stop = share(dim(args, 1) * dim(args, 2), worker, workers, 16)
    x, y = dim(args, 4) + start * itemsize(args), dim(args, 5) + start * itemsize(args)
    gelu_rows(args, number(args, 3) != 0, x, 0, y, 0, 1, stop - start)


def numba_backward(args, worker, workers):
    start, stop = share(dim(args, 1) * dim(args, 2), worker, workers, 16)
    skip = start * itemsize(args)
    dy, x, dx = dim(args, 4) + skip, dim(args, 5) + skip, dim(args, 6) + skip
    gelu_backward_rows(args, number(args, 3) != 0, dy, 0, x, 0, dx, 0, 1, stop - start)
