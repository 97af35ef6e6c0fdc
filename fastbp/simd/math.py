"""exp of a number; 2^x and 1/x of a vector: in float32 as polynomials, in float64 as the C library computes them.

Errors, measured over the whole range of float32 by `tests/simd/test_math.py`: exp 1.03 units in the last place, and 0
where the result is denormal; exp2 3.1 units.
exp: Cody and Waite's range reduction and a minimax polynomial of degree 7. The vector functions are those of
fastbp/_vector_math.h, where the coefficients are told.
The trap: a function that names no fast-math inherits its caller's. Reassociated, the two parts of ln 2 become one
rounded number and 2^64·2^64 becomes infinity: 4.6 units, and infinity from 88.4 on.
"""

from __future__ import annotations

import math
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from fastbp.simd.target import AVX512, TARGET
from fastbp.simd.vector import I32, Vector

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


HAS_SCALEF = TARGET is AVX512 and bool(llvm.get_host_cpu_features().get("avx512dq"))


def polynomial(x: Vector, *coefficients: float) -> Vector:
    """Σ c_k x^k, highest power first, by Horner's rule."""
    result = x.splat(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def _power_of_two_in(shifted: Vector) -> Vector:
    """2^n, where its biased exponent stands in the low bits of `shifted`."""
    words = shifted.words
    return shifted.from_words(shifted.builder.shl(words, ir.Constant(words.type, [23] * shifted.count)))


def exp2(t: Vector) -> Vector:
    """2^t. In float32 within 3.1 units in the last place for t in −126 … 127; below, at most 2^−126, and 0 from −150
    on; above, at least 2^127. NaN for NaN."""
    if not t.single:
        return t.each_lane("exp2")
    if HAS_SCALEF:
        every, mode, itself = ir.Constant(ir.IntType(16), -1), ir.Constant(I32, 4), t.splat(0).value
        floor = ir.Constant(I32, 9)
        f = t.call("llvm.x86.avx512.mask.reduce.ps.512", floor, itself, every, mode)
        p = polynomial(
            f, 1.8671303987503052e-3, 9.0170297771692276e-3, 5.5799912661314011e-2, 0.24016444385051727,
            0.69315129518508911, 1.0,
        )  # fmt: skip
        return p.call("llvm.x86.avx512.mask.scalef.ps.512", t, itself, every, mode)
    magic = 12583039.0  # 1.5 · 2^23 + 127: a sum with it is rounded, the exponent of 2^n lowest
    inside = t.at_least(-127.0).at_most(127.0)
    shifted = inside + magic
    f = inside - (shifted - magic)
    p = polynomial(
        f, 1.3264726148918271e-3, 9.6715129911899567e-3, 5.5507335811853409e-2, 0.24022242426872253,
        0.69314700365066528, 1.0,
    )  # fmt: skip
    return p * _power_of_two_in(shifted)  # a product: a NaN stays one whatever its bits


def exp_scaled(x: Vector, scale: Vector) -> Vector:
    """e^(scale·x), in float32 by way of 2^x: the error grows with |scale·x|, by 6e-8 of the result for each unit."""
    return exp2(x * (scale * LOG2_E)) if x.single else (x * scale).each_lane("exp")


def reciprocal(x: Vector) -> Vector:
    """1/x for a normal x below 2^126, within 1 unit in the last place; elsewhere the result may be NaN."""
    if not (x.single and HAS_SCALEF):
        return 1.0 / x
    y = x.call("llvm.x86.avx512.rcp14.ps.512", x.splat(0).value, ir.Constant(ir.IntType(16), -1))
    return y + y * (1.0 - x * y)
