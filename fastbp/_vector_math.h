/* exp, 2^x, reciprocals and square roots of a vector. In float32 the exponentials are minimax polynomials; in float64
   each lane asks the C library. The same formulas as in fastbp/simd/math.py; tests/simd/test_math.py measures the
   errors there. */

#ifndef FASTBP_VECTOR_MATH_H
#define FASTBP_VECTOR_MATH_H

#include "_vector.h"

/* a·b, and 0 where t > limit, whatever a and b are there. */
INLINE vec product_up_to(vec t, real limit, vec a, vec b) {
#if defined(__AVX512F__)
    return (vec)INTRINSIC(maskz_mul)(NOT_GREATER((native)t, (native)splat(limit)), (native)a, (native)b);
#else
    return (vec)(~(words)(t > splat(limit)) & (words)(a * b));
#endif
}

#ifdef FASTBP_DOUBLE

INLINE vec vector_exp(vec x) {
    for (int lane = 0; lane < LANES; lane++)
        x[lane] = exp(x[lane]);
    return x;
}

INLINE vec vector_exp2(vec x) {
    for (int lane = 0; lane < LANES; lane++)
        x[lane] = exp2(x[lane]);
    return x;
}

#else

/* 2^t, within 3.1 units in the last place for t in −126 … 127. Below, at most 2^−126, and 0 from −150 on; above, at
   least 2^127. NaN for NaN.

   A polynomial of degree 5 on the fraction (8.2e-8 relative), 1 at 0, and the whole part goes to the exponent: by
   scalef, or by a factor 2^n put together from its bits, which is 0 for n = −127. */
INLINE vec vector_exp2(vec t) {
#if defined(__AVX512DQ__)
    const vec f = (vec)_mm512_reduce_ps((__m512)t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vec p = splat(1.8671303987503052e-3f);
    p = p * f + splat(9.0170297771692276e-3f);
    p = p * f + splat(5.5799912661314011e-2f);
    p = p * f + splat(0.24016444385051727f);
    p = p * f + splat(0.69315129518508911f);
    p = p * f + splat(1.0f);
    return (vec)_mm512_scalef_ps((__m512)p, (__m512)t);
#else
    const vec magic = splat(12583039.0f); /* 1.5 · 2^23 + 127: a sum with it is rounded, the exponent of 2^n lowest */
    const vec inside = smaller(splat(127.0f), larger(splat(-127.0f), t)); /* a NaN stays */
    const vec shifted = inside + magic;
    const vec f = inside - (shifted - magic);
    vec p = splat(1.3264726148918271e-3f);
    p = p * f + splat(9.6715129911899567e-3f);
    p = p * f + splat(5.5507335811853409e-2f);
    p = p * f + splat(0.24022242426872253f);
    p = p * f + splat(0.69314700365066528f);
    p = p * f + splat(1.0f);
    return p * (vec)((words)shifted << 23); /* a product: a NaN stays one whatever its bits */
#endif
}

/* e^x, within 1.2 units in the last place; 0 below the smallest normal number, infinity above the largest, NaN for NaN.
   Cody and Waite's range reduction and a polynomial of degree 6 (3.1e-9 relative). */
INLINE vec vector_exp(vec x) {
    const vec low = splat(-87.33654f), magic = splat(12582912.0f);
    const vec inside = smaller(splat(89.0f), larger(low, x)); /* e^89 is infinite; a NaN stays */
    const vec shifted = inside * splat(1.4426950408889634f) + magic;
    const vec n = shifted - magic;
    vec r = inside - n * splat(0.693359375f);
    r = r - n * splat(-2.12194440e-4f);
    vec p = splat(1.3814617414027452e-3f);
    p = p * r + splat(8.3687100559473038e-3f);
    p = p * r + splat(4.1668388992547989e-2f);
    p = p * r + splat(0.1666652113199234f);
    p = p * r + splat(0.49999994039535522f);
    p = p * r + splat(1.0f);
    p = p * r + splat(1.0f);
#if defined(__AVX512F__)
    const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, (__m512)low, _CMP_NLT_UQ);
    return (vec)_mm512_maskz_scalef_ps(normal, (__m512)p, (__m512)n);
#else
    const words whole = (words)shifted - (words)magic, half = whole >> 1; /* 2^128 is no float: two factors */
    const vec y = p * (vec)((half + 127) << 23) * (vec)((whole - half + 127) << 23);
    return (vec)((words)y & ~(words)(x < low));
#endif
}

#endif

/* e^(scale·x). In float32 by way of 2^x: the error grows with |scale·x|, by 6e-8 of the result for each unit. */
INLINE vec vector_exp_scaled(vec x, vec scale) {
#ifdef FASTBP_DOUBLE
    return vector_exp(x * scale);
#else
    return vector_exp2(x * (scale * splat(1.4426950408889634f)));
#endif
}

/* 1/x for a normal x below 2^126, within 1 unit in the last place; elsewhere the result may be NaN.

   A division of 16 floats keeps the multipliers waiting; an approximation to 14 bits and one step of Newton's does not.
   In float64, and where a division runs beside the rest, it is the division. */
INLINE vec vector_reciprocal(vec x) {
#if defined(__AVX512F__) && !defined(FASTBP_DOUBLE)
    const vec y = (vec)_mm512_rcp14_ps((__m512)x);
    return y + y * (splat(1) - x * y);
#else
    return splat(1) / x;
#endif
}

INLINE vec vector_sqrt(vec x) {
#ifdef INTRINSIC
    return (vec)INTRINSIC(sqrt)((native)x);
#else
    for (int lane = 0; lane < LANES; lane++)
        x[lane] = (real)sqrt(x[lane]);
    return x;
#endif
}

#endif
