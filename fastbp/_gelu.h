/* GELU of a vector and dy times its slope; the maths is told in fastbp/ops/gelu.py.

   fastbp/ops/gelu.py states the errors in float32 and tests/ops/test_gelu_accuracy.py measures them. −∞ gives 0 and slope
   0, ∞ gives ∞ and slope 1, NaN gives NaN. */

#ifndef FASTBP_GELU_H
#define FASTBP_GELU_H

#include "_vector_math.h"

#define TWICE_ROOT 1.5957691216057308 /* 2 √(2/π) */
#define CUBIC 0.044715
#define ROOT_HALF 0.70710678118654752
#define DENSITY 0.39894228040143268 /* 1/√(2π) */
#define LOG2_E 1.4426950408889634

#ifdef FASTBP_DOUBLE

/* x between −1000 and 1000, where GELU and its slope have long been 0, x and 1: no power of it overflows. */
INLINE vec gelu_clamped(vec x) { return smaller(splat(1e3), larger(splat(-1e3), x)); }

/* σ(2u). */
INLINE vec gelu_logistic(vec x) {
    return splat(1) / (splat(1) + vector_exp(splat(-TWICE_ROOT) * (x + splat(CUBIC) * (x * x * x))));
}

/* Φ(x). */
INLINE vec gelu_normal(vec x) {
    for (int lane = 0; lane < LANES; lane++)
        x[lane] = 0.5 * (1 + erf(x[lane] * ROOT_HALF));
    return x;
}

INLINE vec gelu_tanh(vec x) { return larger(splat(-1e3), x) * gelu_logistic(x); }

INLINE vec gelu_tanh_backward(vec dy, vec x) {
    const vec a = gelu_clamped(x), sigma = gelu_logistic(a);
    return dy * (sigma + a * sigma * (splat(1) - sigma) * (splat(TWICE_ROOT) * (splat(1) + splat(3 * CUBIC) * (a * a))));
}

INLINE vec gelu_erf(vec x) { return larger(splat(-1e3), x) * gelu_normal(x); }

INLINE vec gelu_erf_backward(vec dy, vec x) {
    const vec a = gelu_clamped(x);
    return dy * (gelu_normal(a) + a * (splat(DENSITY) * vector_exp(splat(-0.5) * (a * a))));
}

#else

#define FARTHEST 126.0f /* σ < 2^−126 counts as 0 */

/* −2u·log2 e. */
INLINE vec gelu_exponent(vec x, vec square) {
    return x * (splat((real)(-TWICE_ROOT * LOG2_E * CUBIC)) * square + splat((real)(-TWICE_ROOT * LOG2_E)));
}

INLINE vec gelu_tanh(vec x) {
    const vec t = gelu_exponent(x, x * x);
    return product_up_to(t, FARTHEST, x, vector_reciprocal(splat(1) + vector_exp2(t)));
}

INLINE vec gelu_tanh_backward(vec dy, vec x) {
    const vec a = smaller(splat(16), x); /* the slope is 1 from 6 on; ∞ would meet 0 */
    const vec square = a * a, t = gelu_exponent(a, square), e = vector_exp2(t);
    const vec sigma = vector_reciprocal(splat(1) + e);
    const vec slope = splat((real)(TWICE_ROOT * 3 * CUBIC)) * square + splat((real)TWICE_ROOT);
    return product_up_to(t, FARTHEST, dy, sigma + (sigma * (e * sigma)) * (a * slope)); /* 1 − σ = e σ */
}

/* ½ erfc(a/√2) exp(a²/2) for a in 0 … 13, 9.4e-8 relative: a polynomial of degree 8 in 1/(1 + 0.305 a). */
INLINE vec gelu_tail(vec a) {
    const vec t = vector_reciprocal(splat(1) + splat(0.305f) * a);
    vec p = splat(0.036699190735816956f);
    p = p * t + splat(-0.15298829972743988f);
    p = p * t + splat(0.18571688234806061f);
    p = p * t + splat(-0.037976793944835663f);
    p = p * t + splat(0.12102165073156357f);
    p = p * t + splat(0.10342087596654892f);
    p = p * t + splat(0.12246681749820709f);
    p = p * t + splat(0.12163973599672318f);
    return p * t;
}

/* exp(−a²/2). */
INLINE vec gelu_bell(vec a) { return vector_exp2(a * a * splat((real)(-0.5 * LOG2_E))); }

/* |x|, at most 16: nothing is left of the bell there. */
INLINE vec gelu_distance(vec x) { return smaller(splat(16), (vec)((words)x & INT32_MAX)); }

INLINE vec gelu_erf(vec x) {
    const vec a = gelu_distance(x);
    return larger(splat(0), x) - (a * gelu_bell(a)) * gelu_tail(a);
}

INLINE vec gelu_erf_backward(vec dy, vec x) {
    const vec a = gelu_distance(x), bell = gelu_bell(a);
    const vec beyond = bell * (a * splat((real)DENSITY) - gelu_tail(a)); /* the slope at a, less 1 */
    const vec flipped = (vec)((words)beyond ^ ((words)x & INT32_MIN));
    return dy * (flipped + (vec)(~((words)x >> 31) & (words)splat(1))); /* the slopes at x and −x sum to 1 */
}

#endif

#endif
