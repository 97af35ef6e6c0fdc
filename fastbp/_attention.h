/* Causal attention without a T × T array: blocks of queries against chunks of keys, one head of one sequence at a time.

   Scores are held transposed, Sᵀ (keys, queries): a vector holds one key's scores of LANES queries, so the softmax of a
   query stays in its lane and needs no sum across lanes. K and V are only ever broadcast, hence copied as they lie; Q and
   dO of a block are transposed into vectors of queries. A block is QUERY_VECTORS vectors of queries; where a chunk meets
   the diagonal, each LANES keys see one vector less (a strip), so what the mask hides is skipped but for a triangle.

   An element of every product is one chain of multiply-adds: dK and dV in the order of the queries, the others in that of
   the keys. Blocks and chunks depend on T alone. The twin of fastbp/simd/attention.py. */

#ifndef FASTBP_ATTENTION_H
#define FASTBP_ATTENTION_H

#include "_gemm.h"
#include "_vector_math.h"

#if VECTOR_BYTES == 64
#define STRIP_ROWS 8
#define QUERY_VECTORS 3
#else
#define STRIP_ROWS 6
#define QUERY_VECTORS 2
#endif

#define BLOCK (QUERY_VECTORS * LANES) /* queries, and elements from key to key in transposed scratch */

/* ---- products of small strided operands ------------------------------------------------------------------------- */

/* C = A·B, or C += A·B: `rows` and `vectors` are literals at every call, so the sums live in registers. */
INLINE void strip_tile(
    const int rows, const int vectors, int64_t depth, const real *a, int64_t a_row, int64_t a_col, const real *b,
    int64_t b_row, real *c, int64_t c_row, int add)
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
}

INLINE void strip_rows(
    const int vectors, int64_t rows, int64_t depth, const real *a, int64_t a_row, int64_t a_col, const real *b,
    int64_t b_row, real *c, int64_t c_row, int add)
{
#define STRIP_TILE(height)                                                                               \
    do {                                                                                                 \
        strip_tile(height, vectors, depth, a, a_row, a_col, b, b_row, c, c_row, add);                    \
        a += (height) * a_row;                                                                           \
        c += (height) * c_row;                                                                           \
        rows -= (height);                                                                                \
    } while (0)
    while (rows >= STRIP_ROWS)
        STRIP_TILE(STRIP_ROWS);
    if (rows >= 4)
        STRIP_TILE(4);
    if (rows >= 2)
        STRIP_TILE(2);
    if (rows >= 1)
        STRIP_TILE(1);
#undef STRIP_TILE
}

/* C (rows, vectors · LANES) = A (rows, depth) · B (depth, vectors · LANES), or C += A·B where `add`; A has any strides,
   B and C are read and written in whole vectors. */
static __attribute__((noinline, unused)) void strip_product(
    int vectors, int64_t rows, int64_t depth, const real *a, int64_t a_row, int64_t a_col, const real *b,
    int64_t b_row, real *c, int64_t c_row, int add)
{
    if (vectors == 1)
        strip_rows(1, rows, depth, a, a_row, a_col, b, b_row, c, c_row, add);
    else if (vectors == 2)
        strip_rows(2, rows, depth, a, a_row, a_col, b, b_row, c, c_row, add);
#if QUERY_VECTORS > 2
    else
        strip_rows(3, rows, depth, a, a_row, a_col, b, b_row, c, c_row, add);
#endif
}

/* The same for a C of any number of vectors, in parts as even as they come. */
static void wide_product(
    int64_t vectors, int64_t rows, int64_t depth, const real *a, int64_t a_row, int64_t a_col, const real *b,
    int64_t b_row, real *c, int64_t c_row, int add)
{
    const int64_t parts = (vectors + QUERY_VECTORS - 1) / QUERY_VECTORS;
    for (int64_t p = 0; p < parts; p++) {
        const int64_t v = vectors * p / parts, at = v * LANES;
        strip_product(
            (int)(vectors * (p + 1) / parts - v), rows, depth, a, a_row, a_col, b + at, b_row, c + at, c_row, add);
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

/* One head of one sequence. `width` is D rounded up to whole vectors. */
typedef struct {
    int64_t T, D, width, chunk;
    real scale;
} Head;

INLINE Head head_of(int64_t T, int64_t D, int64_t chunk) {
    const Head head = {T, D, (D + LANES - 1) / LANES * LANES, chunk, (real)(1 / sqrt((double)D))};
    return head;
}

INLINE int64_t vectors_of(int64_t T) { return (T + LANES - 1) / LANES; }

INLINE int64_t blocks_of(int64_t T) { return (vectors_of(T) + QUERY_VECTORS - 1) / QUERY_VECTORS; }

/* The first vector of block p, which ends where the next begins. */
INLINE int64_t block_start(int64_t T, int64_t p) { return vectors_of(T) * p / blocks_of(T); }

/* Keys lo … hi of a chunk that are seen by the vectors f … v − 1 of a block alone. Row `lo` is row `lo` − `begin` of the
   scratch. All lanes of later vectors see them; in vector f the keys from `masked` on are hidden from some. */
typedef struct {
    int64_t f, lo, hi, masked;
} Strip;

INLINE Strip strip_of(int64_t T, int64_t q0, int64_t f, int64_t begin, int64_t end) {
    const int64_t diagonal = q0 + f * LANES;
    const int64_t low = f ? diagonal : 0, high = least(diagonal + LANES, T);
    const Strip strip = {f, low > begin ? low : begin, least(high, end), diagonal};
    return strip;
}

/* ---- forward ------------------------------------------------------------------------------------------------------ */

/* peak = the largest score a lane, over the rows of a strip; hidden scores become −∞. */
INLINE void find_peak(const int vectors, int64_t rows, int64_t hidden, real *s, real *peak) {
    vec highest[QUERY_VECTORS];
    UNROLL for (int j = 0; j < vectors; j++)
        highest[j] = load_whole(peak + j * LANES);
    for (int64_t i = 0; i < rows; i++, s += BLOCK) {
        if (hidden + i > 0)
            store_whole(s, first(splat((real)-INFINITY), load_whole(s), hidden + i));
        UNROLL for (int j = 0; j < vectors; j++)
            highest[j] = larger(load_whole(s + j * LANES), highest[j]);
    }
    UNROLL for (int j = 0; j < vectors; j++)
        store_whole(peak + j * LANES, highest[j]);
}

/* S becomes exp(scale · (S − peak)), and total grows by it. The difference comes first: see exp_and_sum. */
INLINE void weigh(const int vectors, int64_t rows, real scale, real *s, const real *peak, real *total) {
    vec sum[QUERY_VECTORS];
    UNROLL for (int j = 0; j < vectors; j++)
        sum[j] = load_whole(total + j * LANES);
    for (int64_t i = 0; i < rows; i++, s += BLOCK)
        UNROLL for (int j = 0; j < vectors; j++) {
            const vec e = vector_exp((load_whole(s + j * LANES) - load_whole(peak + j * LANES)) * splat(scale));
            store_whole(s + j * LANES, e);
            sum[j] += e;
        }
    UNROLL for (int j = 0; j < vectors; j++)
        store_whole(total + j * LANES, sum[j]);
}

/* F(1, …), F(2, …) or F(3, …): the number of vectors as a literal. */
#if QUERY_VECTORS > 2
#define BY_VECTORS(vectors, F, ...)                                                                      \
    ((vectors) == 1 ? F(1, __VA_ARGS__) : (vectors) == 2 ? F(2, __VA_ARGS__) : F(3, __VA_ARGS__))
#else
#define BY_VECTORS(vectors, F, ...) ((vectors) == 1 ? F(1, __VA_ARGS__) : F(2, __VA_ARGS__))
#endif

/* A worker's scratch in a forward call. */
typedef struct {
    real *k, *v, *query, *out, *s, *peak, *last, *total, *square;
} Forward;

INLINE Forward forward_scratch(Head head, real *at) {
    const int64_t rows = head.T * head.width, block = head.width * BLOCK;
    Forward w;
    w.k = at;
    w.v = w.k + rows;
    w.query = w.v + rows;
    w.out = w.query + block;
    w.s = w.out + block;
    w.peak = w.s + head.chunk * BLOCK;
    w.last = w.peak + BLOCK;
    w.total = w.last + BLOCK;
    w.square = w.total + BLOCK;
    return w;
}

/* What was summed under the peak `last` is brought under the new one. */
static void rescale(Head head, Forward w, int64_t vectors) {
    for (int64_t j = 0; j < vectors * LANES; j += LANES) {
        const vec factor = vector_exp((load_whole(w.last + j) - load_whole(w.peak + j)) * splat(head.scale));
        store_whole(w.total + j, load_whole(w.total + j) * factor);
        for (int64_t c = 0; c < head.D; c++)
            store_whole(w.out + c * BLOCK + j, load_whole(w.out + c * BLOCK + j) * factor);
    }
}

/* Scores, weights and Oᵀ of a block against the keys begin … end. */
static void attend_chunk(Head head, Forward w, int64_t q0, int64_t vectors, int64_t begin, int64_t end) {
    for (int64_t f = 0; f < vectors; f++) {
        const Strip strip = strip_of(head.T, q0, f, begin, end);
        const int64_t rows = strip.hi - strip.lo, at = f * LANES;
        real *s = w.s + (strip.lo - begin) * BLOCK + at;
        if (rows <= 0)
            continue;
        strip_product(
            (int)(vectors - f), rows, head.D, w.k + strip.lo * head.width, head.width, 1, w.query + at, BLOCK, s, BLOCK, 0);
        BY_VECTORS(vectors - f, find_peak, rows, strip.lo - strip.masked, s, w.peak + at);
    }
    if (begin)
        rescale(head, w, vectors);
    for (int64_t f = 0; f < vectors; f++) {
        const Strip strip = strip_of(head.T, q0, f, begin, end);
        const int64_t rows = strip.hi - strip.lo, at = f * LANES;
        real *s = w.s + (strip.lo - begin) * BLOCK + at;
        if (rows <= 0)
            continue;
        BY_VECTORS(vectors - f, weigh, rows, head.scale, s, w.peak + at, w.total + at);
        strip_product(
            (int)(vectors - f), head.D, rows, w.v + strip.lo * head.width, 1, head.width, s, BLOCK, w.out + at, BLOCK,
            begin + f > 0);
    }
}

/* O and log Σ exp of one block of queries; K and V are in scratch up to its last query. */
static void attend_block(
    Head head, Forward w, int64_t block, const real *q, int64_t q_row, real *o, int64_t o_row, real *lse)
{
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
        attend_chunk(head, w, q0, vectors, begin, least(begin + head.chunk, stop));
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

static __attribute__((unused)) void attend(
    int64_t worker, int64_t workers, int64_t B, int64_t T, int64_t C, int64_t H, int64_t chunk, const real *qkv, real *o,
    real *lse, real *scratch)
{
    const Head head = head_of(T, C / H, chunk);
    const Forward w = forward_scratch(head, scratch);
    const int64_t blocks = blocks_of(T);
    int64_t task, block, last_task, last_block;
    forward_share(B * H, blocks, worker, workers, &task, &block);
    forward_share(B * H, blocks, worker + 1, workers, &last_task, &last_block);
    for (; task < last_task || (task == last_task && block < last_block); task++, block = 0) {
        const int64_t end = task < last_task ? blocks : last_block;
        const int64_t keys = least(block_start(T, end) * LANES, T);
        const real *q = qkv + task / H * T * 3 * C + task % H * head.D;
        copy_padded(keys, head.D, q + C, 3 * C, w.k, head.width);
        copy_padded(keys, head.D, q + 2 * C, 3 * C, w.v, head.width);
        for (; block < end; block++)
            attend_block(head, w, block, q, 3 * C, o + task / H * T * C + task % H * head.D, C, lse + task * T);
    }
}

/* ---- backward ----------------------------------------------------------------------------------------------------- */

/* A worker's scratch in a backward call. */
typedef struct {
    real *k, *v, *dk, *dv, *query, *dout, *query_rows, *dout_rows, *dq, *p, *ds, *lse, *delta, *square;
} Backward;

INLINE Backward backward_scratch(Head head, real *at) {
    const int64_t rows = head.T * head.width, block = head.width * BLOCK, scores = head.chunk * BLOCK;
    Backward w;
    w.k = at;
    w.v = w.k + rows;
    w.dk = w.v + rows;
    w.dv = w.dk + rows;
    w.query = w.dv + rows;
    w.dout = w.query + block;
    w.query_rows = w.dout + block;
    w.dout_rows = w.query_rows + block;
    w.dq = w.dout_rows + block;
    w.p = w.dq + block;
    w.ds = w.p + scores;
    w.lse = w.ds + scores;
    w.delta = w.lse + BLOCK;
    w.square = w.delta + BLOCK;
    return w;
}

/* S becomes P = exp(scale·S − lse) and dP becomes dS = scale · P ∘ (dP − δ); both 0 where hidden. */
INLINE void slope(const int vectors, int64_t rows, int64_t hidden, real scale, real *s, real *ds, const real *lse, const real *delta) {
    for (int64_t i = 0; i < rows; i++, s += BLOCK, ds += BLOCK)
        UNROLL for (int j = 0; j < vectors; j++) {
            const int64_t at = j * LANES;
            vec p = vector_exp(load_whole(s + at) * splat(scale) - load_whole(lse + at));
            if (j == 0 && hidden + i > 0)
                p = first((vec){0}, p, hidden + i);
            store_whole(s + at, p);
            store_whole(ds + at, p * splat(scale) * (load_whole(ds + at) - load_whole(delta + at)));
        }
}

/* A block against the keys of one strip: adds to dK, dV and dQᵀ. `queries` are the block's that exist. */
static void attend_backward_strip(Head head, Backward w, Strip strip, int64_t vectors, int64_t queries, int add) {
    const int64_t rows = strip.hi - strip.lo, at = strip.f * LANES, width = head.width, keys = strip.lo * width;
    const int count = (int)(vectors - strip.f);
    real *p = w.p + at, *ds = w.ds + at;
    strip_product(count, rows, head.D, w.k + keys, width, 1, w.query + at, BLOCK, p, BLOCK, 0);
    strip_product(count, rows, head.D, w.v + keys, width, 1, w.dout + at, BLOCK, ds, BLOCK, 0);
    BY_VECTORS(count, slope, rows, strip.lo - strip.masked, head.scale, p, ds, w.lse + at, w.delta + at);
    wide_product(
        width / LANES, rows, queries - at, p, BLOCK, 1, w.dout_rows + at * width, width, w.dv + keys, width, 1);
    wide_product(
        width / LANES, rows, queries - at, ds, BLOCK, 1, w.query_rows + at * width, width, w.dk + keys, width, 1);
    strip_product(count, head.D, rows, w.k + keys, 1, width, ds, BLOCK, w.dq + at, BLOCK, add);
}

/* What a block needs of its queries: Q and dO as rows and transposed, log Σ exp and δ = Σ dO∘O. */
static void load_queries(
    Head head, Backward w, int64_t queries, const real *q, const real *dout, const real *o, int64_t q_row, int64_t o_row,
    const real *lse)
{
    transpose_in(queries, head.D, q, q_row, w.query, BLOCK, w.square);
    transpose_in(queries, head.D, dout, o_row, w.dout, BLOCK, w.square);
    copy_padded(queries, head.D, q, q_row, w.query_rows, head.width);
    copy_padded(queries, head.D, dout, o_row, w.dout_rows, head.width);
    for (int64_t i = 0; i < BLOCK; i += LANES) {
        store_whole(w.lse + i, i < queries ? load(lse + i, queries - i) : (vec){0});
        store_whole(w.delta + i, (vec){0});
    }
    for (int64_t i = 0; i < queries; i++) {
        vec sum = {0};
        for (int64_t j = 0; j < head.D; j += LANES)
            sum += load_whole(w.dout_rows + i * head.width + j) * load(o + i * o_row + j, head.D - j);
        w.delta[i] = lane_sum(sum);
    }
}

static void attend_backward_head(
    Head head, Backward w, const real *q, const real *dout, const real *o, const real *lse, real *dq, int64_t C)
{
    const int64_t T = head.T, D = head.D, wide = 3 * C;
    copy_padded(T, D, q + C, wide, w.k, head.width);
    copy_padded(T, D, q + 2 * C, wide, w.v, head.width);
    memset(w.dk, 0, (size_t)(2 * T * head.width) * sizeof(real)); /* dV lies behind dK */
    for (int64_t block = 0; block < blocks_of(T); block++) {
        const int64_t start = block_start(T, block), vectors = block_start(T, block + 1) - start;
        const int64_t q0 = start * LANES, stop = least(q0 + vectors * LANES, T);
        load_queries(head, w, stop - q0, q + q0 * wide, dout + q0 * C, o + q0 * C, wide, C, lse + q0);
        for (int64_t begin = 0; begin < stop; begin += head.chunk)
            for (int64_t f = 0; f < vectors; f++) {
                const Strip strip = strip_of(T, q0, f, begin, least(begin + head.chunk, stop));
                if (strip.lo < strip.hi)
                    attend_backward_strip(head, w, strip, vectors, stop - q0, begin + f > 0);
            }
        transpose_out(stop - q0, D, w.dq, BLOCK, dq + q0 * wide, wide, w.square);
    }
    for (int64_t i = 0; i < T; i++)
        for (int64_t j = 0; j < D; j += LANES) {
            store(dq + C + i * wide + j, load_whole(w.dk + i * head.width + j), D - j);
            store(dq + 2 * C + i * wide + j, load_whole(w.dv + i * head.width + j), D - j);
        }
}

static __attribute__((unused)) void attend_backward(
    int64_t worker, int64_t workers, int64_t B, int64_t T, int64_t C, int64_t H, int64_t chunk, const real *dout,
    const real *qkv, const real *o, const real *lse, real *dqkv, real *scratch)
{
    const Head head = head_of(T, C / H, chunk);
    const Backward w = backward_scratch(head, scratch);
    const int64_t end = share(B * H, worker + 1, workers, 1);
    for (int64_t task = share(B * H, worker, workers, 1); task < end; task++) {
        const int64_t b = task / H, at = task % H * head.D;
        const int64_t in = b * T * 3 * C + at, out = b * T * C + at;
        attend_backward_head(head, w, qkv + in, dout + out, o + out, lse + task * T, dqkv + in, C);
    }
}

#endif
