/* Causal attention without a T × T array: blocks of queries against chunks of keys, one head of one sequence at a time.

   Scores are held transposed, Sᵀ (keys, queries): a vector holds one key's scores of LANES queries, so the softmax of a
   query stays in its lane and needs no sum across lanes. K and V are only ever broadcast, hence copied as they lie; Q and
   dO of a block are transposed into vectors of queries. A block is QUERY_VECTORS vectors of queries; where a chunk meets
   the diagonal, each LANES keys see one vector less (a strip), so what the mask hides is skipped but for a triangle.

   An element of every product is one chain of multiply-adds: dK and dV in the order of the queries, the others in that of
   the keys. Blocks and chunks depend on T alone. The twin of fastbp/simd/attention.py.

   Where `drop` is given, weights lose a share of their elements. Callers give it or NULL as a literal and all on the way is
   inlined, so that code without dropout knows nothing of it. */

#ifndef FASTBP_ATTENTION_H
#define FASTBP_ATTENTION_H

#include "_dropout.h"
#include "_gemm.h"
#include "_vector_math.h"

#if VECTOR_BYTES == 64 || defined(__aarch64__)
#define STRIP_ROWS 8 /* 24 sums of 32 registers */
#else
#define STRIP_ROWS 4 /* 12 of 16; a strip of LANES keys is whole tiles */
#endif
#define QUERY_VECTORS 3
#define BLOCK (QUERY_VECTORS * LANES) /* queries, and elements from key to key in transposed scratch */

/* ---- products of small strided operands ------------------------------------------------------------------------- */

/* The largest of `peak` and of `rows` vectors of a column of sums, in pairs. */
INLINE vec tallest(const int rows, vec sum[STRIP_ROWS][QUERY_VECTORS], const int j, vec peak) {
    if (rows == 1)
        return larger(sum[0][j], peak);
    vec high = larger(sum[0][j], sum[1][j]);
    if (rows > 2)
        high = larger(high, larger(sum[2][j], sum[3][j]));
#if STRIP_ROWS > 4
    if (rows > 4)
        high = larger(high, larger(larger(sum[4][j], sum[5][j]), larger(sum[6][j], sum[7][j])));
#endif
    return larger(high, peak);
}

/* C = A·B, or C += A·B: `rows` and `vectors` are literals at every call, so the sums live in registers. Where `peak` is
   given, it becomes the largest of itself and of C's rows. */
INLINE void strip_tile(
    const int rows, const int vectors, int64_t depth, const real *a, int64_t a_row, int64_t a_col, const real *b,
    int64_t b_row, real *c, int64_t c_row, int add, real *peak)
{
    vec sum[STRIP_ROWS][QUERY_VECTORS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++)
            sum[i][j] = add ? load_whole(c + i * c_row + j * LANES) : (vec){0};
    for (int64_t k = 0; k < depth; k++, a += a_col, b += b_row) {
        vec line[QUERY_VECTORS];
        UNROLL for (int j = 0; j < vectors; j++)
            line[j] = load_whole(b + j * LANES);
        UNROLL for (int i = 0; i < rows; i++) {
            const vec x = splat(a[i * a_row]);
            UNROLL for (int j = 0; j < vectors; j++)
                sum[i][j] += x * line[j];
        }
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++)
            store_whole(c + i * c_row + j * LANES, sum[i][j]);
    if (peak)
        UNROLL for (int j = 0; j < vectors; j++)
            store_whole(peak + j * LANES, tallest(rows, sum, j, load_whole(peak + j * LANES)));
}

INLINE void strip_rows(
    const int vectors, int64_t rows, int64_t depth, const real *a, int64_t a_row, int64_t a_col, const real *b,
    int64_t b_row, real *c, int64_t c_row, int add, real *peak)
{
#define STRIP_TILE(height)                                                                               \
    do {                                                                                                 \
        strip_tile(height, vectors, depth, a, a_row, a_col, b, b_row, c, c_row, add, peak);              \
        a += (height) * a_row;                                                                           \
        c += (height) * c_row;                                                                           \
        rows -= (height);                                                                                \
    } while (0)
    while (rows >= STRIP_ROWS)
        STRIP_TILE(STRIP_ROWS);
    if (STRIP_ROWS > 4 && rows >= 4)
        STRIP_TILE(4);
    if (rows >= 2)
        STRIP_TILE(2);
    if (rows >= 1)
        STRIP_TILE(1);
#undef STRIP_TILE
}

/* F(1, …), F(2, …) or F(3, …): the number of vectors as a literal. */
#define BY_VECTORS(vectors, F, ...)                                                                      \
    ((vectors) == 1 ? F(1, __VA_ARGS__) : (vectors) == 2 ? F(2, __VA_ARGS__) : F(3, __VA_ARGS__))

/* C (rows, vectors · LANES) = A (rows, depth) · B (depth, vectors · LANES), or C += A·B where `add`; A has any strides,
   B and C are read and written in whole vectors. */
static __attribute__((noinline, unused)) void strip_product(
    int64_t vectors, int64_t rows, int64_t depth, const real *a, int64_t a_row, int64_t a_col, const real *b,
    int64_t b_row, real *c, int64_t c_row, int add)
{
    BY_VECTORS(vectors, strip_rows, rows, depth, a, a_row, a_col, b, b_row, c, c_row, add, NULL);
}

/* Scores of a strip: S (rows, vectors · LANES) = K (rows, D) · Qᵀ, and `peak` takes in their largest, lane by lane. */
static __attribute__((noinline, unused)) void strip_scores(
    int64_t vectors, int64_t rows, int64_t D, const real *k, int64_t k_row, const real *query, real *s, real *peak)
{
    BY_VECTORS(vectors, strip_rows, rows, D, k, k_row, 1, query, BLOCK, s, BLOCK, 0, peak);
}

/* C += A·B where A is a tile of scores and its columns are rows of the product: with its strides as constants. */
static __attribute__((noinline, unused)) void strip_sums(
    int64_t vectors, int64_t rows, int64_t depth, const real *a, const real *b, int64_t b_row, real *c, int64_t c_row)
{
    BY_VECTORS(vectors, strip_rows, rows, depth, a, BLOCK, 1, b, b_row, c, c_row, 1, NULL);
}

/* The same for a C of any number of vectors, in parts as even as they come. */
INLINE void wide_sums(
    int64_t vectors, int64_t rows, int64_t depth, const real *a, const real *b, int64_t b_row, real *c, int64_t c_row)
{
    const int64_t parts = (vectors + QUERY_VECTORS - 1) / QUERY_VECTORS;
    for (int64_t p = 0; p < parts; p++) {
        const int64_t v = vectors * p / parts, at = v * LANES;
        strip_sums(vectors * (p + 1) / parts - v, rows, depth, a, b + at, b_row, c + at, c_row);
    }
}

/* ---- in and out of scratch ------------------------------------------------------------------------------------------ */

/* Rows of `columns` elements, padded with zeros to `width`, a multiple of LANES. */
static void copy_padded(
    int64_t rows, int64_t columns, const real *source, int64_t source_row, real *target, int64_t width)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j += LANES)
            store_whole(target + i * width + j, load(source + i * source_row + j, columns - j));
}

/* Transposes (rows, columns) into (columns, rows), both padded with zeros to multiples of LANES. `square` holds LANES² . */
static void transpose_in(
    int64_t rows, int64_t columns, const real *source, int64_t source_row, real *target, int64_t target_row,
    real *square)
{
    for (int64_t i = 0; i < rows; i += LANES)
        for (int64_t j = 0; j < columns; j += LANES) {
            const real *at = source + i * source_row + j;
            real *to = target + j * target_row + i;
            if (i + LANES <= rows && j + LANES <= columns) {
                transpose_square(at, source_row, to, target_row);
                continue;
            }
            for (int64_t k = 0; k < LANES; k++)
                store_whole(square + k * LANES, i + k < rows ? load(at + k * source_row, columns - j) : (vec){0});
            transpose_square(square, LANES, to, target_row);
        }
}

/* Transposes back: (columns, rows), padded to multiples of LANES, into (rows, columns). */
static void transpose_out(
    int64_t rows, int64_t columns, const real *source, int64_t source_row, real *target, int64_t target_row,
    real *square)
{
    for (int64_t i = 0; i < rows; i += LANES)
        for (int64_t j = 0; j < columns; j += LANES) {
            const real *at = source + j * source_row + i;
            real *to = target + i * target_row + j;
            if (i + LANES <= rows && j + LANES <= columns) {
                transpose_square(at, source_row, to, target_row);
                continue;
            }
            transpose_square(at, source_row, square, LANES);
            for (int64_t k = 0; k < least(LANES, rows - i); k++)
                store(to + k * target_row, load_whole(square + k * LANES), columns - j);
        }
}

/* 2^x for x of at most about 0, as every weight's exponent is; 0 below the smallest normal number, NaN for NaN. A minimax
   polynomial of degree 6 on −½ … 1, exact at 0; below 1 unit in the last place. */
INLINE vec weight_of(vec x) {
#ifdef FASTBP_DOUBLE
    for (int lane = 0; lane < LANES; lane++)
        x[lane] = exp2(x[lane]);
    return x;
#else
#if defined(__AVX512DQ__)
    const vec f = (vec)_mm512_reduce_ps((__m512)x, 1); /* x less its floor, 0 for −∞ */
#else
    /* In the low bits of `shifted` stands n + 127, which are the exponent bits of 2^n. */
    const vec low = splat(-126.0f), magic = splat(12582912.0f + 127.0f);
    const vec inside = larger(low, x), shifted = inside + magic, f = inside - (shifted - magic);
#endif
    vec p = splat(1.80935443e-4f);
    p = p * f + splat(1.33103877e-3f);
    p = p * f + splat(9.6073607e-3f);
    p = p * f + splat(5.55058941e-2f);
    p = p * f + splat(2.40227595e-1f);
    p = p * f + splat(6.93147123e-1f);
    p = p * f + splat(1.0f);
#if defined(__AVX512DQ__)
    return (vec)_mm512_scalef_ps((__m512)p, (__m512)x); /* times 2 to the power of the floor */
#else
    const vec y = p * (vec)((words)shifted << 23);
    return (vec)((words)y & ~(words)(inside <= low));
#endif
#endif
}

/* log x for x of at least 1; NaN for NaN. Cephes' logf: a polynomial of degree 8 on √½ … √2. */
INLINE vec attention_log(vec x) {
#ifdef FASTBP_DOUBLE
    for (int lane = 0; lane < LANES; lane++)
        x[lane] = log(x[lane]);
    return x;
#else
    const words whole = ((words)x - 0x3f3504f3) >> 23;
    const vec e = __builtin_convertvector(whole, vec);
    const vec f = (vec)((words)x - (whole << 23)) - splat(1.0f);
    const vec square = f * f;
    vec p = splat(7.0376836292e-2f);
    p = p * f + splat(-1.1514610310e-1f);
    p = p * f + splat(1.1676998740e-1f);
    p = p * f + splat(-1.2420140846e-1f);
    p = p * f + splat(1.4249322787e-1f);
    p = p * f + splat(-1.6668057665e-1f);
    p = p * f + splat(2.0000714765e-1f);
    p = p * f + splat(-2.4999993993e-1f);
    p = p * f + splat(3.3333331174e-1f);
    p = p * f * square + e * splat(-2.12194440e-4f) - splat(0.5f) * square;
    return choose((words)(x == x), (f + p) + e * splat(0.693359375f), x);
#endif
}

/* ---- blocks of queries, strips of keys ---------------------------------------------------------------------------- */

#define LOG2_E 1.4426950408889634

/* One head of one sequence. `width` is D rounded up to whole vectors; e^(scale · s) is 2^(power · s). Where `copied`, rows are
   copied side by side into scratch: they are far apart in memory, which pays off for many tokens, and must be padded where D
   fills no vector. */
typedef struct {
    int64_t T, D, width, chunk;
    real scale, power;
    int copied;
} Head;

INLINE Head head_of(int64_t T, int64_t D, int64_t chunk) {
    const double scale = 1 / sqrt((double)D);
    const int copied = T > 128 || D % LANES;
    const Head head = {T, D, (D + LANES - 1) / LANES * LANES, chunk, (real)scale, (real)(scale * LOG2_E), copied};
    return head;
}

INLINE int64_t vectors_of(int64_t T) { return (T + LANES - 1) / LANES; }

INLINE int64_t blocks_of(int64_t T) { return (vectors_of(T) + QUERY_VECTORS - 1) / QUERY_VECTORS; }

/* The first vector of block p, which ends where the next begins. */
INLINE int64_t block_start(int64_t T, int64_t p) { return vectors_of(T) * p / blocks_of(T); }

/* Keys lo … hi of a chunk that the vectors f … v − 1 of a block see alone. Strip 0 is the past, which all queries see whole;
   strip s > 0 are the LANES keys on the diagonal of vector f = s − 1, of which its lane r sees the first r + 1. */
typedef struct {
    int64_t f, lo, hi;
} Strip;

INLINE Strip strip_of(int64_t T, int64_t q0, int64_t s, int64_t begin, int64_t end) {
    const int64_t f = s ? s - 1 : 0, diagonal = q0 + f * LANES;
    const int64_t low = s ? diagonal : 0, high = s ? diagonal + LANES : q0;
    const Strip strip = {f, low > begin ? low : begin, least(least(high, T), end)};
    return strip;
}

/* Where head `task` of all sequences' begins in an array like qkv, and in one like o. */
INLINE int64_t qkv_start(int64_t task, int64_t T, int64_t C, int64_t H) { return task / H * T * 3 * C + task % H * (C / H); }

INLINE int64_t o_start(int64_t task, int64_t T, int64_t C, int64_t H) { return task / H * T * C + task % H * (C / H); }

/* ---- what is fetched ahead ---------------------------------------------------------------------------------------- */

/* A head's rows lie too far apart in memory for the hardware to see them coming. So while one head is worked on the next
   one's are fetched, a few between any two products: a row each of `streams` arrays, its `parts` C apart. */
typedef struct {
    struct {
        const real *at;
        int64_t row, parts;
    } stream[4];
    int64_t streams, rows, at_once, D, C;
} Coming;

/* `T` rows, spread over `products` products a strip; a head has at least as many strips as are counted here. */
INLINE Coming coming_rows(int64_t T, int64_t D, int64_t C, int64_t products) {
    const Coming coming = {
        .rows = T, .at_once = ceiling(T, products * (vectors_of(T) + blocks_of(T) - 1)), .D = D, .C = C};
    return coming;
}

INLINE void also_coming(Coming *coming, const real *at, int64_t row, int64_t parts) {
    coming->stream[coming->streams].at = at;
    coming->stream[coming->streams].row = row;
    coming->stream[coming->streams++].parts = parts;
}

static __attribute__((noinline)) void fetch(Coming *coming) {
    const int64_t rows = least(coming->at_once, coming->rows);
    coming->rows -= rows;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t s = 0; s < coming->streams; s++) {
            const real *at = coming->stream[s].at;
            coming->stream[s].at += coming->stream[s].row;
            for (int64_t p = 0; p < coming->stream[s].parts; p++, at += coming->C)
                for (int64_t j = 0; j < coming->D; j += 64 / REAL_BYTES)
                    __builtin_prefetch(at + j, 0, 2);
        }
}

/* ---- forward ------------------------------------------------------------------------------------------------------ */

/* On the diagonal: scores of keys that a query does not see become −∞, then `peak` takes in the largest. `key` is the first
   row's place in its strip. */
INLINE void hide(int64_t vectors, int64_t rows, int64_t key, real *s, real *peak) {
    for (int64_t i = 0; i < rows; i++) {
        real *row = s + i * BLOCK;
        store_whole(row, first(splat((real)-INFINITY), load_whole(row), key + i));
        for (int64_t j = 0; j < vectors * LANES; j += LANES)
            store_whole(peak + j, larger(load_whole(row + j), load_whole(peak + j)));
    }
}

/* S becomes 2^(power · (S − peak)), and total grows by it. The difference comes first: one rounding of power · S less the
   peak's product can leave the largest score above 0. */
INLINE void weigh(const int vectors, int64_t rows, real power, real *s, const real *peak, real *total) {
    vec sum[QUERY_VECTORS], highest[QUERY_VECTORS];
    UNROLL for (int j = 0; j < vectors; j++) {
        sum[j] = load_whole(total + j * LANES);
        highest[j] = load_whole(peak + j * LANES);
    }
    for (int64_t i = 0; i < rows; i++, s += BLOCK)
        UNROLL for (int j = 0; j < vectors; j++) {
            const vec e = weight_of((load_whole(s + j * LANES) - highest[j]) * splat(power));
            store_whole(s + j * LANES, e);
            sum[j] += e;
        }
    UNROLL for (int j = 0; j < vectors; j++)
        store_whole(total + j * LANES, sum[j]);
}

/* Weights of keys lo … hi times their factors. A vector's lanes are the rows from `row` on. */
static __attribute__((unused)) void drop_weights(
    const Dropout *drop, int64_t row, int64_t vectors, int64_t lo, int64_t hi, real *p)
{
    for (int64_t quad = lo / 4; quad * 4 < hi; quad++)
        for (int64_t j = 0; j < vectors * LANES; j += LANES) {
            vec m[4];
            column_factors(drop, (uint64_t)(row + j), (uint64_t)quad, m);
            for (int64_t key = quad * 4 > lo ? quad * 4 : lo; key < least(quad * 4 + 4, hi); key++) {
                real *at = p + (key - lo) * BLOCK + j;
                store_whole(at, load_whole(at) * m[key % 4]);
            }
        }
}

/* A worker's scratch in a forward call; k and v may lie in place, `row` elements from row to row. */
typedef struct {
    const real *k, *v;
    int64_t row;
    real *k_copy, *v_copy, *query, *out, *s, *peak, *last, *total, *square;
    Coming coming;
} Forward;

INLINE Forward forward_scratch(Head head, real *at) {
    const int64_t rows = head.T * head.width, block = head.width * BLOCK;
    Forward w = {NULL};
    w.k_copy = at;
    w.v_copy = w.k_copy + rows;
    w.query = w.v_copy + rows;
    w.out = w.query + block;
    w.s = w.out + block;
    w.peak = w.s + head.chunk * BLOCK;
    w.last = w.peak + BLOCK;
    w.total = w.last + BLOCK;
    w.square = w.total + BLOCK;
    return w;
}

/* `keys` rows of K and V, C apart. */
INLINE void place_keys(Head head, Forward *w, int64_t keys, const real *k, int64_t C) {
    w->row = head.copied ? head.width : 3 * C;
    w->k = head.copied ? w->k_copy : k;
    w->v = head.copied ? w->v_copy : k + C;
    if (head.copied) {
        copy_padded(keys, head.D, k, 3 * C, w->k_copy, head.width);
        copy_padded(keys, head.D, k + C, 3 * C, w->v_copy, head.width);
    }
}

/* What was summed under the peak `last` is brought under the new one. */
INLINE void rescale(Head head, Forward w, int64_t vectors) {
    for (int64_t j = 0; j < vectors * LANES; j += LANES) {
        const vec factor = weight_of((load_whole(w.last + j) - load_whole(w.peak + j)) * splat(head.power));
        store_whole(w.total + j, load_whole(w.total + j) * factor);
        for (int64_t c = 0; c < head.D; c++)
            store_whole(w.out + c * BLOCK + j, load_whole(w.out + c * BLOCK + j) * factor);
    }
}

/* Scores, weights and Oᵀ of a block against the keys begin … end. `row` is the head's first for dropout, here and below. */
INLINE void attend_chunk(
    Head head, Forward *state, int64_t q0, int64_t vectors, int64_t begin, int64_t end, const Dropout *drop, int64_t row)
{
    const Forward w = *state;
    for (int64_t i = 0; i <= vectors; i++) {
        const Strip strip = strip_of(head.T, q0, i, begin, end);
        const int64_t rows = strip.hi - strip.lo, at = strip.f * LANES, count = vectors - strip.f;
        const real *k = w.k + strip.lo * w.row;
        real *s = w.s + (strip.lo - begin) * BLOCK + at;
        if (rows <= 0)
            continue;
        strip_scores(count, rows, head.D, k, w.row, w.query + at, s, i ? NULL : w.peak);
        fetch(&state->coming);
        if (i)
            hide(count, rows, strip.lo - q0 - at, s, w.peak + at);
    }
    if (begin)
        rescale(head, w, vectors);
    for (int64_t i = 0; i <= vectors; i++) {
        const Strip strip = strip_of(head.T, q0, i, begin, end);
        const int64_t rows = strip.hi - strip.lo, at = strip.f * LANES, count = vectors - strip.f;
        const real *v = w.v + strip.lo * w.row;
        real *s = w.s + (strip.lo - begin) * BLOCK + at;
        if (rows <= 0)
            continue;
        BY_VECTORS(count, weigh, rows, head.power, s, w.peak + at, w.total + at);
        if (drop)
            drop_weights(drop, row + q0 + at, count, strip.lo, strip.hi, s);
        strip_product(count, head.D, rows, v, 1, w.row, s, BLOCK, w.out + at, BLOCK, strip.lo > 0);
        fetch(&state->coming);
    }
}

/* O and log Σ exp of one block of queries; K and V are in scratch up to its last query. */
INLINE void attend_block(
    Head head, Forward *state, int64_t block, const real *q, int64_t q_row, real *o, int64_t o_row, real *lse,
    const Dropout *drop, int64_t row)
{
    const Forward w = *state;
    const int64_t start = block_start(head.T, block), vectors = block_start(head.T, block + 1) - start;
    const int64_t q0 = start * LANES, stop = least(q0 + vectors * LANES, head.T);
    transpose_in(stop - q0, head.D, q + q0 * q_row, q_row, w.query, BLOCK, w.square);
    for (int64_t j = 0; j < vectors * LANES; j += LANES) {
        store_whole(w.peak + j, splat((real)-INFINITY));
        store_whole(w.total + j, (vec){0});
    }
    for (int64_t begin = 0; begin < stop; begin += head.chunk) {
        for (int64_t j = 0; j < vectors * LANES; j += LANES)
            store_whole(w.last + j, load_whole(w.peak + j));
        attend_chunk(head, state, q0, vectors, begin, least(begin + head.chunk, stop), drop, row);
    }
    for (int64_t j = 0; j < vectors * LANES; j += LANES) {
        const vec total = load_whole(w.total + j), inverse = splat(1) / total;
        for (int64_t c = 0; c < head.D; c++)
            store_whole(w.out + c * BLOCK + j, load_whole(w.out + c * BLOCK + j) * inverse);
        store(lse + q0 + j, load_whole(w.peak + j) * splat(head.scale) + attention_log(total), stop - q0 - j);
    }
    transpose_out(stop - q0, head.D, w.out, BLOCK, o + q0 * o_row, o_row, w.square);
}

/* Where worker's share of all heads' blocks begins, when block p of a head costs p + 1: head and block. */
INLINE void forward_share(int64_t heads, int64_t blocks, int64_t worker, int64_t workers, int64_t *head, int64_t *block) {
    const int64_t whole = blocks * (blocks + 1) / 2, from = heads * whole * worker / workers;
    *head = from / whole;
    *block = 0;
    while (*block * (*block + 1) / 2 < from % whole)
        ++*block;
}

INLINE void attend(
    int64_t worker, int64_t workers, int64_t B, int64_t T, int64_t C, int64_t H, int64_t chunk, const real *qkv, real *o,
    real *lse, real *scratch, const Dropout *drop, int64_t row)
{
    const Head head = head_of(T, C / H, chunk);
    Forward w = forward_scratch(head, scratch);
    const int64_t blocks = blocks_of(T);
    int64_t task, block, last_task, last_block;
    forward_share(B * H, blocks, worker, workers, &task, &block);
    forward_share(B * H, blocks, worker + 1, workers, &last_task, &last_block);
    for (; task < last_task || (task == last_task && block < last_block); task++, block = 0) {
        const int64_t end = task < last_task ? blocks : last_block;
        const int64_t keys = least(block_start(T, end) * LANES, T);
        const real *q = qkv + qkv_start(task, T, C, H);
        place_keys(head, &w, keys, q + C, C);
        w.coming = coming_rows(T, head.D, C, 2);
        if (task + 1 < last_task + (last_block > 0)) {
            also_coming(&w.coming, qkv + qkv_start(task + 1, T, C, H), 3 * C, 3);
            also_coming(&w.coming, o + o_start(task + 1, T, C, H), C, 1);
        }
        for (; block < end; block++)
            attend_block(
                head, &w, block, q, 3 * C, o + o_start(task, T, C, H), C, lse + task * T, drop, row + task * T);
    }
}

/* ---- backward ----------------------------------------------------------------------------------------------------- */

/* A worker's scratch in a backward call. What may lie in place has its row's elements beside it. */
typedef struct {
    const real *k, *v, *query_rows, *dout_rows;
    int64_t row, dout_row;
    real *dk, *dv;
    real *k_copy, *v_copy, *dk_copy, *dv_copy, *query_copy, *dout_copy;
    real *query, *dout, *dq, *p, *ds, *lse, *delta, *square;
    Coming coming;
} Backward;

INLINE Backward backward_scratch(Head head, real *at) {
    const int64_t rows = head.T * head.width, block = head.width * BLOCK, scores = head.chunk * BLOCK;
    Backward w = {NULL};
    w.k_copy = at;
    w.v_copy = w.k_copy + rows;
    w.dk_copy = w.v_copy + rows;
    w.dv_copy = w.dk_copy + rows;
    w.query_copy = w.dv_copy + rows;
    w.dout_copy = w.query_copy + block;
    w.query = w.dout_copy + block;
    w.dout = w.query + block;
    w.dq = w.dout + block;
    w.p = w.dq + block;
    w.ds = w.p + scores;
    w.lse = w.ds + scores;
    w.delta = w.lse + BLOCK;
    w.square = w.delta + BLOCK;
    return w;
}

/* K and V, and zeros in dK and dV. */
INLINE void place_head(Head head, Backward *w, const real *k, real *dk, int64_t C) {
    w->row = head.copied ? head.width : 3 * C;
    w->dout_row = head.copied ? head.width : C;
    w->k = head.copied ? w->k_copy : k;
    w->v = head.copied ? w->v_copy : k + C;
    w->dk = head.copied ? w->dk_copy : dk;
    w->dv = head.copied ? w->dv_copy : dk + C;
    if (head.copied) {
        copy_padded(head.T, head.D, k, 3 * C, w->k_copy, head.width);
        copy_padded(head.T, head.D, k + C, 3 * C, w->v_copy, head.width);
    }
    for (int64_t i = 0; i < head.T; i++)
        for (int64_t j = 0; j < head.width; j += LANES) {
            store_whole(w->dk + i * w->row + j, (vec){0});
            store_whole(w->dv + i * w->row + j, (vec){0});
        }
}

/* What a block needs of its queries: Q and dO as rows and transposed, log₂ Σ exp and δ = Σ dO∘O. */
INLINE void place_queries(
    Head head, Backward *w, int64_t queries, const real *q, const real *dout, const real *o, int64_t C, const real *lse)
{
    w->query_rows = head.copied ? w->query_copy : q;
    w->dout_rows = head.copied ? w->dout_copy : dout;
    if (head.copied) {
        copy_padded(queries, head.D, q, 3 * C, w->query_copy, head.width);
        copy_padded(queries, head.D, dout, C, w->dout_copy, head.width);
    }
    transpose_in(queries, head.D, w->query_rows, w->row, w->query, BLOCK, w->square);
    transpose_in(queries, head.D, w->dout_rows, w->dout_row, w->dout, BLOCK, w->square);
    for (int64_t i = 0; i < BLOCK; i += LANES) {
        store_whole(w->lse + i, i < queries ? load(lse + i, queries - i) * splat((real)LOG2_E) : (vec){0});
        store_whole(w->delta + i, (vec){0});
    }
    for (int64_t i = 0; i < queries; i++) {
        vec sum = {0};
        for (int64_t j = 0; j < head.D; j += LANES)
            sum += load_whole(w->dout_rows + i * w->dout_row + j) * load(o + i * C + j, head.D - j);
        w->delta[i] = lane_sum(sum);
    }
}

/* S becomes P = 2^(power·S − lse) and dP becomes dS = scale · P ∘ (dP − δ). */
INLINE void slope(
    const int vectors, int64_t rows, Head head, real *s, real *ds, const real *lse, const real *delta)
{
    vec sums[QUERY_VECTORS], along[QUERY_VECTORS];
    UNROLL for (int j = 0; j < vectors; j++) {
        sums[j] = load_whole(lse + j * LANES);
        along[j] = load_whole(delta + j * LANES);
    }
    for (int64_t i = 0; i < rows; i++, s += BLOCK, ds += BLOCK)
        UNROLL for (int j = 0; j < vectors; j++) {
            const int64_t at = j * LANES;
            const vec p = weight_of(load_whole(s + at) * splat(head.power) - sums[j]);
            store_whole(s + at, p);
            store_whole(ds + at, p * splat(head.scale) * (load_whole(ds + at) - along[j]));
        }
}

/* The same with dropout, for keys lo … hi: S becomes P ∘ M and dP becomes scale · P ∘ (M ∘ dP − δ). Lanes are the rows from
   `row` on. */
static __attribute__((unused)) void slope_dropped(
    const Dropout *drop, int64_t row, int64_t vectors, int64_t lo, int64_t hi, Head head, real *s, real *ds,
    const real *lse, const real *delta)
{
    for (int64_t quad = lo / 4; quad * 4 < hi; quad++)
        for (int64_t j = 0; j < vectors * LANES; j += LANES) {
            const vec sum = load_whole(lse + j), along = load_whole(delta + j);
            vec m[4];
            column_factors(drop, (uint64_t)(row + j), (uint64_t)quad, m);
            for (int64_t key = quad * 4 > lo ? quad * 4 : lo; key < least(quad * 4 + 4, hi); key++) {
                const int64_t at = (key - lo) * BLOCK + j;
                const vec p = weight_of(load_whole(s + at) * splat(head.power) - sum);
                store_whole(s + at, p * m[key % 4]);
                store_whole(ds + at, p * splat(head.scale) * (load_whole(ds + at) * m[key % 4] - along));
            }
        }
}

/* On the diagonal: P and dS become 0 where a query does not see the key. */
INLINE void clear_hidden(int64_t rows, int64_t key, real *p, real *ds) {
    for (int64_t i = 0; i < rows; i++, p += BLOCK, ds += BLOCK) {
        store_whole(p, first((vec){0}, load_whole(p), key + i));
        store_whole(ds, first((vec){0}, load_whole(ds), key + i));
    }
}

/* A block against the keys of one strip: adds to dK, dV and dQᵀ. `queries` are the block's that exist. */
INLINE void attend_backward_strip(
    Head head, Backward *state, Strip strip, int64_t q0, int64_t vectors, int64_t queries, const Dropout *drop, int64_t row)
{
    const Backward w = *state;
    const int64_t rows = strip.hi - strip.lo, at = strip.f * LANES, keys = strip.lo * w.row, count = vectors - strip.f;
    const int64_t columns = head.width / LANES;
    real *p = w.p + at, *ds = w.ds + at;
    strip_product(count, rows, head.D, w.k + keys, w.row, 1, w.query + at, BLOCK, p, BLOCK, 0);
    fetch(&state->coming);
    strip_product(count, rows, head.D, w.v + keys, w.row, 1, w.dout + at, BLOCK, ds, BLOCK, 0);
    fetch(&state->coming);
    if (drop)
        slope_dropped(drop, row + q0 + at, count, strip.lo, strip.hi, head, p, ds, w.lse + at, w.delta + at);
    else
        BY_VECTORS(count, slope, rows, head, p, ds, w.lse + at, w.delta + at);
    if (strip.lo >= q0)
        clear_hidden(rows, strip.lo - q0 - at, p, ds);
    wide_sums(columns, rows, queries - at, p, w.dout_rows + at * w.dout_row, w.dout_row, w.dv + keys, w.row);
    fetch(&state->coming);
    wide_sums(columns, rows, queries - at, ds, w.query_rows + at * w.row, w.row, w.dk + keys, w.row);
    fetch(&state->coming);
    strip_product(count, head.D, rows, w.k + keys, 1, w.row, ds, BLOCK, w.dq + at, BLOCK, strip.lo > 0);
    fetch(&state->coming);
}

INLINE void attend_backward_head(
    Head head, Backward w, const real *q, const real *dout, const real *o, const real *lse, real *dq, int64_t C,
    const Dropout *drop, int64_t row)
{
    const int64_t T = head.T, D = head.D, wide = 3 * C;
    place_head(head, &w, q + C, dq + C, C);
    for (int64_t block = 0; block < blocks_of(T); block++) {
        const int64_t start = block_start(T, block), vectors = block_start(T, block + 1) - start;
        const int64_t q0 = start * LANES, stop = least(q0 + vectors * LANES, T);
        place_queries(head, &w, stop - q0, q + q0 * wide, dout + q0 * C, o + q0 * C, C, lse + q0);
        for (int64_t begin = 0; begin < stop; begin += head.chunk)
            for (int64_t s = 0; s <= vectors; s++) {
                const Strip strip = strip_of(T, q0, s, begin, least(begin + head.chunk, stop));
                if (strip.lo < strip.hi)
                    attend_backward_strip(head, &w, strip, q0, vectors, stop - q0, drop, row);
            }
        transpose_out(stop - q0, D, w.dq, BLOCK, dq + q0 * wide, wide, w.square);
    }
    if (!head.copied)
        return;
    for (int64_t i = 0; i < T; i++)
        for (int64_t j = 0; j < D; j += LANES) {
            store(dq + C + i * wide + j, load_whole(w.dk + i * w.row + j), D - j);
            store(dq + 2 * C + i * wide + j, load_whole(w.dv + i * w.row + j), D - j);
        }
}

INLINE void attend_backward(
    int64_t worker, int64_t workers, int64_t B, int64_t T, int64_t C, int64_t H, int64_t chunk, const real *dout,
    const real *qkv, const real *o, const real *lse, real *dqkv, real *scratch, const Dropout *drop, int64_t row)
{
    const Head head = head_of(T, C / H, chunk);
    Backward w = backward_scratch(head, scratch);
    const int64_t end = share(B * H, worker + 1, workers, 1);
    for (int64_t task = share(B * H, worker, workers, 1); task < end; task++) {
        const int64_t in = qkv_start(task, T, C, H), out = o_start(task, T, C, H);
        w.coming = coming_rows(T, head.D, C, 5);
        if (task + 1 < end) {
            const int64_t next_in = qkv_start(task + 1, T, C, H), next_out = o_start(task + 1, T, C, H);
            also_coming(&w.coming, qkv + next_in, 3 * C, 3);
            also_coming(&w.coming, dqkv + next_in, 3 * C, 3);
            also_coming(&w.coming, dout + next_out, C, 1);
            also_coming(&w.coming, o + next_out, C, 1);
        }
        attend_backward_head(
            head, w, qkv + in, dout + out, o + out, lse + task * T, dqkv + in, C, drop, row + task * T);
    }
}

#endif
