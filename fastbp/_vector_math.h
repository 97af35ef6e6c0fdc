/* exp, erf and square roots of a vector. In float32 exp and erf are polynomials; in float64 each lane asks the C library.

   exp: Cody and Waite's range reduction and a minimax polynomial of degree 6; about 1 unit in the last place.
   erf: Abramowitz and Stegun 7.1.26; 6e-7 absolute. The same coefficients as in fastbp/simd/math.py. */

#ifndef FASTBP_VECTOR_MATH_H
#define FASTBP_VECTOR_MATH_H

#include "_vector.h"

#ifdef FASTBP_DOUBLE

INLINE vec vector_exp(vec x) {
    for (int lane = 0; lane < LANES; lane++)
        x[lane] = exp(x[lane]);
    return x;
}

INLINE vec vector_erf(vec x) {
    for (int lane = 0; lane < LANES; lane++)
        x[lane] = erf(x[lane]);
    return x;
}

#else

/* e^x; 0 below the smallest normal number, infinity above the largest, NaN for NaN. */
INLINE vec vector_exp(vec x) {
    const vec low = splat(-87.33654f), magic = splat(12582912.0f);
    const vec inside = smaller(splat(89.0f), larger(low, x)); /* e^89 is infinite; a NaN stays */
    const vec shifted = inside * splat(1.4426950408889634f) + magic; /* 1.5 · 2^23 + n, rounded: n in the low bits */
    const vec n = shifted - magic;
    vec r = inside - n * splat(0.693359375f);
    r = r - n * splat(-2.12194440e-4f);
    vec p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    p = (p * r) * r + (r + splat(1.0f));
#if defined(__AVX512F__)
    const vec y = (vec)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    const words whole = (words)shifted - (words)magic, half = whole >> 1; /* 2^128 is no float: two factors */
    const vec y = p * (vec)((half + 127) << 23) * (vec)((whole - half + 127) << 23);
#endif
    return (vec)((words)y & ~(words)(x < low));
}

INLINE vec vector_erf(vec x) {
    const words sign = (words)x & INT32_MIN;
    const vec a = (vec)((words)x & INT32_MAX);
    const vec t = splat(1.0f) / (splat(1.0f) + splat(0.3275911f) * a);
    vec p = splat(1.061405429f);
    p = p * t + splat(-1.453152027f);
    p = p * t + splat(1.421413741f);
    p = p * t + splat(-0.284496736f);
    p = p * t + splat(0.254829592f);
    const vec y = splat(1.0f) - p * t * vector_exp(-a * a);
    return (vec)((words)y | sign);
}

#endif

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
