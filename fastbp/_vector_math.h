/* exp, erf and square roots of a vector. In float32 exp and erf are polynomials; in float64 each lane asks the C library.

   exp: Cody and Waite's range reduction and a minimax polynomial of degree 6; 2 units in the last place.
   erf: Abramowitz and Stegun 7.1.26; 2e-7 absolute. The same coefficients as in fastbp/simd/math.py. */

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
    const vec low = splat(-87.33654f), high = splat(88.72283f);
    const vec magic = splat(12582912.0f); /* 1.5 · 2^23: adding it rounds to a whole number and leaves that in the low bits */
    vec inside = choose((words)(x < low), low, x); /* in both a NaN compares false and stays */
    inside = choose((words)(inside > high), high, inside);
    const vec shifted = inside * splat(1.4426950408889634f) + magic;
    const words n = (words)shifted - (words)magic;
    const vec whole = shifted - magic;
    vec r = inside - whole * splat(0.693359375f);
    r = r - whole * splat(-2.12194440e-4f);
    vec p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    p = (p * r) * r + (r + splat(1.0f));
    const words half = n >> 1; /* 2^128 is no float: two factors */
    const vec y = p * (vec)((half + 127) << 23) * (vec)((n - half + 127) << 23);
    const vec bounded = choose((words)(x < low), splat(0.0f), y);
    return choose((words)(x > high), splat(HUGE_VALF), bounded);
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
#if defined(__AVX512F__) && !defined(FASTBP_DOUBLE)
    return (vec)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX512F__)
    return (vec)_mm512_sqrt_pd((__m512d)x);
#elif defined(__AVX2__) && !defined(FASTBP_DOUBLE)
    return (vec)_mm256_sqrt_ps((__m256)x);
#elif defined(__AVX2__)
    return (vec)_mm256_sqrt_pd((__m256d)x);
#elif defined(__x86_64__) && !defined(FASTBP_DOUBLE)
    return (vec)_mm_sqrt_ps((__m128)x);
#elif defined(__x86_64__)
    return (vec)_mm_sqrt_pd((__m128d)x);
#elif defined(__aarch64__) && !defined(FASTBP_DOUBLE)
    return (vec)vsqrtq_f32((float32x4_t)x);
#elif defined(__aarch64__)
    return (vec)vsqrtq_f64((float64x2_t)x);
#else
    for (int lane = 0; lane < LANES; lane++)
        x[lane] = (real)sqrt(x[lane]);
    return x;
#endif
}

#endif
