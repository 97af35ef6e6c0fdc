"""exp, tanh-GELU's logistic, erf: in float32 as polynomials that vectorise, in float64 as the C library computes them.

Errors, measured over the whole range of float32 by `tests/simd/test_math.py`: exp 1.03 units in the last place, and 0
where the result is denormal; erf 5.7e-7 absolute.
exp: Cody and Waite's range reduction and a minimax polynomial of degree 6. erf: Abramowitz and Stegun 7.1.26.
The trap: a function that names no fast-math inherits its caller's. Reassociated, the two parts of ln 2 become one
rounded number and 2^64·2^64 becomes infinity: 4.6 units, and infinity from 88.4 on.
"""

from __future__ import annotations

import math
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from fastbp.simd.abi import inline

LOG2_E = 1.4426950408889634
LN2_HIGH = 0.693359375
LN2_LOW = -2.12194440e-4
LOWEST = -87.33654
"""Below it exp is denormal in float32; the polynomial gives 0 there."""
HIGHEST = 88.72283
"""Above it exp is infinite in float32."""


@intrinsic
def _power_of_two(typing: Any, exponent: Any) -> Any:
    """2^n for an int32 n in −126 … 127, put together from its bits."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        biased = builder.add(values[0], ir.Constant(ir.IntType(32), 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(ir.IntType(32), 23)), ir.FloatType())

    return types.float32(types.int32), codegen


@numba.njit(nogil=True, fastmath={"contract"})
def _exp32(x):
    f = numba.float32
    low, high = f(LOWEST), f(HIGHEST)
    inside = min(max(x, low), high)
    n = math.floor(inside * f(LOG2_E) + f(0.5))
    n = f(n)
    r = inside - n * f(LN2_HIGH)
    r = r - n * f(LN2_LOW)
    p = f(1.9875691500e-4)
    p = p * r + f(1.3981999507e-3)
    p = p * r + f(8.3334519073e-3)
    p = p * r + f(4.1665795894e-2)
    p = p * r + f(1.6666665459e-1)
    p = p * r + f(5.0000001201e-1)
    p = p * r * r + r + f(1.0)
    half = numba.int32(n) >> numba.int32(1)
    y = p * _power_of_two(half) * _power_of_two(numba.int32(n) - half)
    y = f(0.0) if x < low else y
    y = f(math.inf) if x > high else y
    return x if x != x else y


def exp(x: float) -> float:
    """e^x in the type of x; NaN stays NaN, ±infinity give infinity and 0."""
    return math.exp(x)


@overload(exp, jit_options={"nogil": True})
def _exp(x):
    if x == types.float32:
        return lambda x: _exp32(x)
    return lambda x: math.exp(x)


@inline
def _erf32(x):
    f = numba.float32
    a = abs(x)
    t = f(1.0) / (f(1.0) + f(0.3275911) * a)
    p = f(1.061405429)
    p = p * t + f(-1.453152027)
    p = p * t + f(1.421413741)
    p = p * t + f(-0.284496736)
    p = p * t + f(0.254829592)
    y = f(1.0) - p * t * _exp32(-a * a)
    return -y if x < f(0.0) else y


def erf(x: float) -> float:
    """The error function in the type of x."""
    return math.erf(x)


@overload(erf, jit_options={"nogil": True})
def _erf(x):
    if x == types.float32:
        return lambda x: _erf32(x)
    return lambda x: math.erf(x)
