/* bfloat16: float32's upper half, rounded to nearest even (fastbp/ops/pack.py). A vector of 32-bit words is rounded with
   integer arithmetic and narrowed, whatever the instruction set; the rest of a row, and float64, go one by one. */

#ifndef FASTBP_BFLOAT16_H
#define FASTBP_BFLOAT16_H

#include "_vector.h"

INLINE uint16_t to_bfloat16(real x) {
    const float single = (float)x;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

INLINE real from_bfloat16(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float single;
    memcpy(&single, &bits, sizeof single);
    return (real)single;
}

#ifndef FASTBP_DOUBLE
typedef uint32_t bits_vec __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t halves_vec __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef uint16_t unaligned_halves __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));

INLINE halves_vec vector_to_bfloat16(vec x) {
    const bits_vec bits = (bits_vec)x;
    const bits_vec rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const bits_vec nan = (bits_vec)(x != x);
    return __builtin_convertvector((nan & (bits >> 16 | 0x40)) | (~nan & rounded), halves_vec);
}

INLINE vec vector_from_bfloat16(halves_vec x) { return (vec)(__builtin_convertvector(x, bits_vec) << 16); }
#endif

static inline void pack_row(const real *x, uint16_t *y, int64_t size) {
    int64_t i = 0;
#ifndef FASTBP_DOUBLE
    for (; i + LANES <= size; i += LANES)
        *(unaligned_halves *)(y + i) = vector_to_bfloat16(load_whole(x + i));
#endif
    for (; i < size; i++)
        y[i] = to_bfloat16(x[i]);
}

static inline void unpack_row(const uint16_t *x, real *y, int64_t size) {
    int64_t i = 0;
#ifndef FASTBP_DOUBLE
    for (; i + LANES <= size; i += LANES)
        store_whole(y + i, vector_from_bfloat16(*(const unaligned_halves *)(x + i)));
#endif
    for (; i < size; i++)
        y[i] = from_bfloat16(x[i]);
}

#endif
