/* Dropout's factors M in vectors: 0, or 1/(1 − p) where word c mod 4 of Philox4x32-7 at (⌊c/4⌋, row, place, 0) is at least
   p·2³². fastbp/ops/dropout.py defines them; the twin is fastbp/simd/dropout.py.

   A word of the generator has a lane of 64 bits to itself, so that its product needs no more than one instruction; what
   stands above its 32 bits is never read. Along a row of elements lanes are counters, and the words are laid side by
   side afterwards; down a column lanes are rows. */

#ifndef FASTBP_DROPOUT_H
#define FASTBP_DROPOUT_H

#include "_vector.h"

#define WIDE (VECTOR_BYTES / 8)
#define PHILOX_ROUNDS 7
#define LOW_WORD 0xFFFFFFFFu
#define FACTOR_VECTORS (4 * WIDE / LANES) /* vectors of factors that one call gives along a row */

typedef uint64_t wide __attribute__((vector_size(VECTOR_BYTES)));

#if VECTOR_BYTES == 64
#define EACH_WIDE(F, d) LANES_8(F, d, 0)
#elif VECTOR_BYTES == 32
#define EACH_WIDE(F, d) LANES_4(F, d, 0)
#else
#define EACH_WIDE(F, d) LANES_2(F, d, 0)
#endif

/* What a call's masks are made from. */
typedef struct {
    uint64_t keys[2 * PHILOX_ROUNDS], place;
    uint32_t threshold;
    real scale;
} Dropout;

INLINE Dropout dropout_of(const int32_t *state, double rate, double place) {
    const double limit = rate * 4294967296.0 + 0.5;
    Dropout drop = {
        .place = (uint64_t)place, .threshold = limit < LOW_WORD ? (uint32_t)limit : LOW_WORD,
        .scale = (real)(1 / (1 - rate))};
    for (uint32_t i = 0; i < PHILOX_ROUNDS; i++) {
        drop.keys[2 * i] = (uint32_t)state[0] + i * 0x9E3779B9u;
        drop.keys[2 * i + 1] = (uint32_t)state[1] + i * 0xBB67AE85u;
    }
    return drop;
}

INLINE wide wide_splat(uint64_t x) { return x - (wide){0}; }

/* The product of the low 32 bits of each lane and a number of 32 bits. GCC does not find the instruction by itself. */
INLINE wide word_product(wide a, uint64_t b) {
#if defined(__AVX512F__)
    return (wide)_mm512_mul_epu32((__m512i)a, (__m512i)wide_splat(b));
#elif defined(__AVX2__)
    return (wide)_mm256_mul_epu32((__m256i)a, (__m256i)wide_splat(b));
#elif defined(__x86_64__)
    return (wide)_mm_mul_epu32((__m128i)a, (__m128i)wide_splat(b));
#else
    return (a & wide_splat(LOW_WORD)) * wide_splat(b);
#endif
}

/* The four words of the counters (c0, c1, place, 0) below 2^32. */
INLINE void philox(const Dropout *drop, wide c0, wide c1, wide word[4]) {
    wide c2 = wide_splat(drop->place), c3 = {0};
    UNROLL for (int i = 0; i < PHILOX_ROUNDS; i++) {
        const wide a = word_product(c0, 0xD2511F53u), b = word_product(c2, 0xCD9E8D57u);
        c0 = b >> 32 ^ c1 ^ wide_splat(drop->keys[2 * i]);
        c1 = b;
        c2 = a >> 32 ^ c3 ^ wide_splat(drop->keys[2 * i + 1]);
        c3 = a;
    }
    word[0] = c0, word[1] = c1, word[2] = c2, word[3] = c3;
}

/* Two words a lane, the second one above the first. */
INLINE wide both(wide low, wide high) { return (low & wide_splat(LOW_WORD)) | high << 32; }

/* The lanes of a and b in turn, from the first or the second half of each. */
#define IN_TURN(j, d) ((j) % 2 * WIDE + (j) / 2 + (d))
#if defined(__clang__)
#define INTERLEAVE(a, b, d) __builtin_shufflevector(a, b, EACH_WIDE(IN_TURN, d))
#else
#define INTERLEAVE(a, b, d) __builtin_shuffle(a, b, (wide){EACH_WIDE(IN_TURN, d)})
#endif

#ifdef FASTBP_DOUBLE
/* The factors of a word a lane; what stands above it does not count. */
INLINE vec factors_of(const Dropout *drop, wide word) {
    const words kept = (words)((words)(word & wide_splat(LOW_WORD)) >= (words)wide_splat(drop->threshold));
    return (vec)(kept & (words)splat(drop->scale));
}
#else
/* The factors of two words a lane. */
INLINE vec factors_of(const Dropout *drop, wide word) {
    typedef uint32_t narrow __attribute__((vector_size(VECTOR_BYTES)));
    const words kept = (words)((narrow)word >= drop->threshold - (narrow){0});
    return (vec)(kept & (words)splat(drop->scale));
}
#endif

/* The factors of 4·WIDE elements of a row from column 4·quad on. */
INLINE void row_factors(const Dropout *drop, uint64_t row, uint64_t quad, vec m[FACTOR_VECTORS]) {
    wide w[4];
    philox(drop, wide_splat(quad) + (wide){EACH_WIDE(OWN_LANE, 0)}, wide_splat(row), w);
#ifdef FASTBP_DOUBLE
    const wide even[2] = {INTERLEAVE(w[0], w[2], 0), INTERLEAVE(w[0], w[2], WIDE / 2)};
    const wide odd[2] = {INTERLEAVE(w[1], w[3], 0), INTERLEAVE(w[1], w[3], WIDE / 2)};
    UNROLL for (int i = 0; i < 2; i++) {
        m[2 * i] = factors_of(drop, INTERLEAVE(even[i], odd[i], 0));
        m[2 * i + 1] = factors_of(drop, INTERLEAVE(even[i], odd[i], WIDE / 2));
    }
#else
    const wide low = both(w[0], w[1]), high = both(w[2], w[3]);
    m[0] = factors_of(drop, INTERLEAVE(low, high, 0));
    m[1] = factors_of(drop, INTERLEAVE(low, high, WIDE / 2));
#endif
}

/* The factors of columns 4·quad … 4·quad + 3, each of LANES rows from `row` on. */
INLINE void column_factors(const Dropout *drop, uint64_t row, uint64_t quad, vec m[4]) {
    const wide lane = {EACH_WIDE(OWN_LANE, 0)};
    wide w[4];
#ifdef FASTBP_DOUBLE
    philox(drop, wide_splat(quad), wide_splat(row) + lane, w);
    UNROLL for (int i = 0; i < 4; i++)
        m[i] = factors_of(drop, w[i]);
#else
    wide odd[4];
    philox(drop, wide_splat(quad), wide_splat(row) + lane + lane, w);
    philox(drop, wide_splat(quad), wide_splat(row + 1) + lane + lane, odd);
    UNROLL for (int i = 0; i < 4; i++)
        m[i] = factors_of(drop, both(w[i], odd[i]));
#endif
}

/* y = x ∘ M for the first `size` elements of a row; y may be x. */
INLINE void drop_row(const Dropout *drop, int64_t row, int64_t size, const real *x, real *y) {
    for (int64_t c = 0; c < size; c += 4 * WIDE) {
        vec m[FACTOR_VECTORS];
        row_factors(drop, (uint64_t)row, (uint64_t)c / 4, m);
        UNROLL for (int i = 0; i < FACTOR_VECTORS; i++) {
            const int64_t at = c + i * LANES;
            if (at < size)
                store(y + at, load(x + at, size - at) * m[i], size - at);
        }
    }
}

#endif
