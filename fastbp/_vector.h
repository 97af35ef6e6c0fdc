/* One vector register of the instruction set that this unit is compiled for, in the compiler's vector extension.

   `real` is float, or double where FASTBP_DOUBLE is defined; `vec` is LANES of them, and + - * / work lane by lane. A row
   whose length is no multiple of LANES ends in a partial vector: `load` and `store` take the number of elements that are
   left and touch no more. So one loop body serves whole and partial vectors, and an element's bits do not depend on where
   in a vector it lies. */

#ifndef FASTBP_VECTOR_H
#define FASTBP_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

#ifdef FASTBP_DOUBLE
#define REAL_BYTES 8
typedef double real;
typedef int64_t word;
#else
#define REAL_BYTES 4
typedef float real;
typedef int32_t word;
#endif

/* The x86 intrinsic of this width and type, for what the vector extension cannot say. */
#define INTRINSIC_NAME(prefix, name, suffix) prefix##name##suffix
#if defined(__AVX512F__) && defined(FASTBP_DOUBLE)
#define INTRINSIC(name) INTRINSIC_NAME(_mm512_, name, _pd)
#define NOT_GREATER(a, b) _mm512_cmp_pd_mask(a, b, _CMP_NGT_UQ)
typedef __m512d native;
#elif defined(__AVX512F__)
#define INTRINSIC(name) INTRINSIC_NAME(_mm512_, name, _ps)
#define NOT_GREATER(a, b) _mm512_cmp_ps_mask(a, b, _CMP_NGT_UQ)
typedef __m512 native;
#elif defined(__AVX2__) && defined(FASTBP_DOUBLE)
#define INTRINSIC(name) INTRINSIC_NAME(_mm256_, name, _pd)
typedef __m256d native;
#elif defined(__AVX2__)
#define INTRINSIC(name) INTRINSIC_NAME(_mm256_, name, _ps)
typedef __m256 native;
#elif defined(__x86_64__) && defined(FASTBP_DOUBLE)
#define INTRINSIC(name) INTRINSIC_NAME(_mm_, name, _pd)
typedef __m128d native;
#elif defined(__x86_64__)
#define INTRINSIC(name) INTRINSIC_NAME(_mm_, name, _ps)
typedef __m128 native;
#endif

#define LANES (VECTOR_BYTES / REAL_BYTES)

typedef real vec __attribute__((vector_size(VECTOR_BYTES)));
typedef word words __attribute__((vector_size(VECTOR_BYTES)));
typedef real unaligned_vec __attribute__((vector_size(VECTOR_BYTES), aligned(REAL_BYTES), may_alias));

#define INLINE static inline __attribute__((always_inline, unused))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* F(lane, d) for every lane, separated by commas: literals, so that the compiler sees a constant shuffle. */
#define LANES_2(F, d, j) F(j, d), F(j + 1, d)
#define LANES_4(F, d, j) LANES_2(F, d, j), LANES_2(F, d, j + 2)
#define LANES_8(F, d, j) LANES_4(F, d, j), LANES_4(F, d, j + 4)
#define LANES_16(F, d, j) LANES_8(F, d, j), LANES_8(F, d, j + 8)
#if VECTOR_BYTES / REAL_BYTES == 16
#define EACH_LANE(F, d) LANES_16(F, d, 0)
#elif VECTOR_BYTES / REAL_BYTES == 8
#define EACH_LANE(F, d) LANES_8(F, d, 0)
#elif VECTOR_BYTES / REAL_BYTES == 4
#define EACH_LANE(F, d) LANES_4(F, d, 0)
#else
#define EACH_LANE(F, d) LANES_2(F, d, 0)
#endif

/* Lane j of the result is lane F(j, d) of a and b side by side. */
#if defined(__clang__)
#define SHUFFLE(a, b, F, d) __builtin_shufflevector(a, b, EACH_LANE(F, d))
#else
#define SHUFFLE(a, b, F, d) __builtin_shuffle(a, b, (words){EACH_LANE(F, d)})
#endif

#define OWN_LANE(j, d) (j)
#define LANE_ACROSS(j, d) ((j) ^ (d))

INLINE vec splat(real x) { return x - (vec){0}; } /* x - 0 keeps the sign of zero */

INLINE vec load_whole(const real *at) { return *(const unaligned_vec *)at; }

INLINE void store_whole(real *at, vec x) { *(unaligned_vec *)at = x; }

/* A store past the caches, for what is not read soon: no line is fetched to be written. `at` is aligned to a vector. Others
   see it after `streams_done`. */
INLINE void store_past(real *at, vec x) {
#ifdef INTRINSIC
    INTRINSIC(stream)(at, (native)x);
#else
    store_whole(at, x);
#endif
}

INLINE void streams_done(void) {
#ifdef INTRINSIC
    _mm_sfence();
#endif
}

/* mask ? a : b, for a mask of all ones or all zeros in each lane. */
INLINE vec choose(words mask, vec a, vec b) { return (vec)((mask & (words)a) | (~mask & (words)b)); }

/* a > b ? a : b, so b where either is NaN. */
INLINE vec larger(vec a, vec b) {
#ifdef INTRINSIC
    return (vec)INTRINSIC(max)((native)a, (native)b);
#else
    return choose((words)(a > b), a, b);
#endif
}

/* a < b ? a : b, so b where either is NaN. */
INLINE vec smaller(vec a, vec b) {
#ifdef INTRINSIC
    return (vec)INTRINSIC(min)((native)a, (native)b);
#else
    return choose((words)(a < b), a, b);
#endif
}

/* The first `left` lanes of a, the rest from b. */
INLINE vec first(vec a, vec b, int64_t left) {
    if (left >= LANES)
        return a;
    const words lane = {EACH_LANE(OWN_LANE, 0)};
    return choose((words)(lane < (word)left - (words){0}), a, b);
}

/* The vector at `at`; lanes from `left` on are 0. */
INLINE vec load(const real *at, int64_t left) {
    if (left >= LANES)
        return load_whole(at);
#if defined(__AVX512F__)
    return (vec)INTRINSIC(maskz_loadu)((1u << left) - 1, at);
#else
    vec x = {0};
    memcpy(&x, at, (size_t)left * sizeof(real));
    return x;
#endif
}

/* Writes the first `left` lanes. */
INLINE void store(real *at, vec x, int64_t left) {
    if (left >= LANES) {
        store_whole(at, x);
        return;
    }
#if defined(__AVX512F__)
    INTRINSIC(mask_storeu)(at, (1u << left) - 1, (native)x);
#else
    memcpy(at, &x, (size_t)left * sizeof(real));
#endif
}

/* The sum of all lanes, added in halves. */
INLINE real lane_sum(vec x) {
#if VECTOR_BYTES / REAL_BYTES > 8
    x += SHUFFLE(x, x, LANE_ACROSS, 8);
#endif
#if VECTOR_BYTES / REAL_BYTES > 4
    x += SHUFFLE(x, x, LANE_ACROSS, 4);
#endif
#if VECTOR_BYTES / REAL_BYTES > 2
    x += SHUFFLE(x, x, LANE_ACROSS, 2);
#endif
    x += SHUFFLE(x, x, LANE_ACROSS, 1);
    return x[0];
}

/* The largest of all lanes. */
INLINE real lane_largest(vec x) {
#if VECTOR_BYTES / REAL_BYTES > 8
    x = larger(x, SHUFFLE(x, x, LANE_ACROSS, 8));
#endif
#if VECTOR_BYTES / REAL_BYTES > 4
    x = larger(x, SHUFFLE(x, x, LANE_ACROSS, 4));
#endif
#if VECTOR_BYTES / REAL_BYTES > 2
    x = larger(x, SHUFFLE(x, x, LANE_ACROSS, 2));
#endif
    x = larger(x, SHUFFLE(x, x, LANE_ACROSS, 1));
    return x[0];
}

/* Σ x² in double, for `size` elements: lanes of double, then the rest one by one. */
INLINE double square_sum(const real *x, int64_t size) {
#if !defined(FASTBP_DOUBLE)
    typedef float narrow __attribute__((vector_size(VECTOR_BYTES / 2), aligned(4), may_alias));
#else
    typedef double narrow __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
#endif
    typedef double wide __attribute__((vector_size(VECTOR_BYTES)));
    enum { STEP = VECTOR_BYTES / 8 };
    wide sum[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * STEP <= size; i += 4 * STEP)
        UNROLL for (int part = 0; part < 4; part++) {
            const wide a = __builtin_convertvector(*(const narrow *)(x + i + part * STEP), wide);
            sum[part] += a * a;
        }
    sum[0] += sum[1] + (sum[2] + sum[3]);
    double total = 0;
    for (int lane = 0; lane < STEP; lane++)
        total += sum[0][lane];
    for (; i < size; i++)
        total += (double)x[i] * (double)x[i];
    return total;
}

#endif
