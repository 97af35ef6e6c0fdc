/* C = init + A·B for any strides of A and either orientation of B, out of packed panels and register tiles.

   DEPTH terms at a time, one panel of B's columns is copied into a worker's scratch, transposed on the way where B lies
   transposed, zero-padded where its columns do not fill a vector. Then every tile of A's rows runs against it, its sums in
   registers. Later terms start from what C holds, so an element of C is one chain of multiply-adds in the order of k
   whatever the blocking: the same bits for every split of the work. The twin of fastbp/simd/gemm.py. */

#ifndef FASTBP_GEMM_H
#define FASTBP_GEMM_H

#include "_vector.h"

#if VECTOR_BYTES == 64
#define TILE_ROWS 8
#define TILE_VECTORS 3
#else
#define TILE_ROWS 6
#define TILE_VECTORS 2
#endif

#define DEPTH 384 /* as in fastbp/simd/target.py, which sizes the scratch */
#define AHEAD 32  /* terms between a load of A and its prefetch */

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* One tile: `rows` and `vectors` are literals at every call, so the loops over them unroll and `sum` lives in registers. */
INLINE void tile(
    const int rows, const int vectors, int64_t depth, const real *a, int64_t a_row, int64_t a_col, const real *panel,
    real *c, int64_t c_row, const real *init, int64_t init_row)
{
    vec sum[TILE_ROWS][TILE_VECTORS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++)
            sum[i][j] = init ? load_whole(init + i * init_row + j * LANES) : (vec){0};
    for (int64_t k = 0; k < depth; k++) {
        vec b[TILE_VECTORS];
        UNROLL for (int j = 0; j < vectors; j++)
            b[j] = load_whole(panel + j * LANES);
        UNROLL for (int i = 0; i < rows; i++) {
            const vec x = splat(a[i * a_row]);
            UNROLL for (int j = 0; j < vectors; j++)
                sum[i][j] += x * b[j];
        }
        __builtin_prefetch(a + AHEAD * a_col); /* where A runs by columns each k is another page, unseen by the hardware */
        a += a_col;
        panel += vectors * LANES;
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++)
            store_whole(c + i * c_row + j * LANES, sum[i][j]);
}

/* All tiles of A's rows against one packed panel. */
INLINE void panel_product(
    const int vectors, int64_t rows, int64_t depth, const real *a, int64_t a_row, int64_t a_col, const real *panel,
    real *c, int64_t c_row, const real *init, int64_t init_row)
{
#define TILE(height)                                                                                     \
    do {                                                                                                 \
        tile(height, vectors, depth, a, a_row, a_col, panel, c, c_row, init, init_row);                  \
        a += (height) * a_row;                                                                           \
        c += (height) * c_row;                                                                           \
        init = init ? init + (height) * init_row : init;                                                 \
        rows -= (height);                                                                                \
    } while (0)
    while (rows >= TILE_ROWS)
        TILE(TILE_ROWS);
    if (rows >= 4)
        TILE(4);
    if (rows >= 2)
        TILE(2);
    if (rows >= 1)
        TILE(1);
#undef TILE
}

static __attribute__((noinline, unused)) void run_panel(
    int vectors, int64_t rows, int64_t depth, const real *a, int64_t a_row, int64_t a_col, const real *panel,
    real *c, int64_t c_row, const real *init, int64_t init_row)
{
    if (vectors == 1)
        panel_product(1, rows, depth, a, a_row, a_col, panel, c, c_row, init, init_row);
    else if (vectors == 2)
        panel_product(2, rows, depth, a, a_row, a_col, panel, c, c_row, init, init_row);
#if TILE_VECTORS > 2
    else
        panel_product(3, rows, depth, a, a_row, a_col, panel, c, c_row, init, init_row);
#endif
}

#define LOW_HALF(j, d) ((j) & (d) ? LANES + (j) - (d) : (j))
#define HIGH_HALF(j, d) ((j) & (d) ? LANES + (j) : (j) + (d))

/* Transposes LANES × LANES elements: rounds that exchange halves between rows at distance d. */
INLINE void transpose_square(const real *source, int64_t source_row, real *target, int64_t target_row) {
    vec row[LANES];
    UNROLL for (int i = 0; i < LANES; i++)
        row[i] = load_whole(source + i * source_row);
#define EXCHANGE(d)                                                                                      \
    UNROLL for (int i = 0; i < LANES; i++)                                                               \
        if (!(i & (d))) {                                                                                \
            const vec low = SHUFFLE(row[i], row[i + (d)], LOW_HALF, d);                                  \
            row[i + (d)] = SHUFFLE(row[i], row[i + (d)], HIGH_HALF, d);                                  \
            row[i] = low;                                                                                \
        }
#if VECTOR_BYTES / REAL_BYTES > 8
    EXCHANGE(8)
#endif
#if VECTOR_BYTES / REAL_BYTES > 4
    EXCHANGE(4)
#endif
#if VECTOR_BYTES / REAL_BYTES > 2
    EXCHANGE(2)
#endif
    EXCHANGE(1)
#undef EXCHANGE
    UNROLL for (int i = 0; i < LANES; i++)
        store_whole(target + i * target_row, row[i]);
}

/* Copies a panel of B whose rows are contiguous. */
static void pack_rows(int64_t depth, int64_t columns, int64_t width, const real *b, int64_t b_row, real *panel) {
    for (int64_t k = 0; k < depth; k++, b += b_row, panel += width)
        for (int64_t j = 0; j < width; j += LANES)
            store_whole(panel + j, j < columns ? load(b + j, columns - j) : (vec){0});
}

/* Copies a panel of B whose columns are contiguous. */
static void pack_columns(int64_t depth, int64_t columns, int64_t width, const real *b, int64_t b_col, real *panel) {
    const int64_t whole = depth / LANES * LANES;
    for (int64_t j0 = 0; j0 < width; j0 += LANES) {
        int64_t start = 0;
        if (j0 + LANES <= columns) {
            for (int64_t k = 0; k < whole; k += LANES)
                transpose_square(b + j0 * b_col + k, b_col, panel + k * width + j0, width);
            start = whole;
        }
        for (int64_t j = j0; j < j0 + LANES; j++)
            for (int64_t k = start; k < depth; k++)
                panel[k * width + j] = j < columns ? b[j * b_col + k] : 0;
    }
}

/* A panel whose columns do not fill its vectors: tile by tile through a tile of scratch behind the panel. */
static void run_ragged_panel(
    int vectors, int64_t columns, int64_t rows, int64_t depth, const real *a, int64_t a_row, int64_t a_col,
    real *panel, real *c, int64_t c_row, const real *init, int64_t init_row)
{
    const int64_t width = vectors * LANES;
    real *scratch = panel + depth * width;
    for (int64_t m = 0; m < rows; m += TILE_ROWS) {
        const int64_t height = least(TILE_ROWS, rows - m);
        for (int64_t i = 0; init && i < height; i++)
            for (int64_t j = 0; j < columns; j += LANES)
                store_whole(scratch + i * width + j, load(init + (m + i) * init_row + j, columns - j));
        run_panel(
            vectors, height, depth, a + m * a_row, a_row, a_col, panel, scratch, width, init ? scratch : NULL, width);
        for (int64_t i = 0; i < height; i++)
            for (int64_t j = 0; j < columns; j += LANES)
                store(c + (m + i) * c_row + j, load_whole(scratch + i * width + j), columns - j);
    }
}

/* C (M, N) = init + A (M, K) · B (K, N); strides count elements and one of B's must be 1.

   `init` is NULL (start from zero) or the first values, `init_row` their row stride: C itself to accumulate, a bias with
   stride 0. `panel` is the worker's scratch of `panel_elements(K, N)` elements. */
static __attribute__((unused)) void gemm(
    int64_t M, int64_t N, int64_t K, const real *a, int64_t a_row, int64_t a_col, const real *b, int64_t b_row,
    int64_t b_col, real *c, int64_t c_row, const real *init, int64_t init_row, real *panel)
{
    if (M <= 0 || N <= 0)
        return;
    const int64_t vectors = (N + LANES - 1) / LANES;
    const int64_t panels = (vectors + TILE_VECTORS - 1) / TILE_VECTORS;
    for (int64_t k = 0; k < K; k += DEPTH) {
        const int64_t depth = least(DEPTH, K - k);
        const real *begin = k ? c : init;
        const int64_t begin_row = k ? c_row : init_row;
        for (int64_t p = 0; p < panels; p++) {
            const int64_t v0 = vectors * p / panels;
            const int count = (int)(vectors * (p + 1) / panels - v0);
            const int64_t j = v0 * LANES, width = count * LANES, columns = least(N - j, width);
            const real *at_a = a + k * a_col, *at_b = b + k * b_row + j * b_col, *at_init = begin ? begin + j : NULL;
            if (b_col == 1)
                pack_rows(depth, columns, width, at_b, b_row, panel);
            else
                pack_columns(depth, columns, width, at_b, b_col, panel);
            if (columns == width)
                run_panel(count, M, depth, at_a, a_row, a_col, panel, c + j, c_row, at_init, begin_row);
            else
                run_ragged_panel(
                    count, columns, M, depth, at_a, a_row, a_col, panel, c + j, c_row, at_init, begin_row);
        }
    }
}

/* Where the part of `size` that belongs to a worker begins, cut at multiples of `unit`; it ends where the next begins. */
static inline __attribute__((unused)) int64_t share(int64_t size, int64_t worker, int64_t workers, int64_t unit) {
    const int64_t units = (size + unit - 1) / unit;
    return least(size, units * worker / workers * unit);
}

/* A worker's share of `gemm`: columns where there are enough for everyone, else rows. */
static __attribute__((unused)) void shared_gemm(
    int64_t worker, int64_t workers, int64_t M, int64_t N, int64_t K, const real *a, int64_t a_row, int64_t a_col,
    const real *b, int64_t b_row, int64_t b_col, real *c, int64_t c_row, const real *init, int64_t init_row, real *panel)
{
    if (N >= 2 * LANES * workers) {
        const int64_t j0 = share(N, worker, workers, LANES), j1 = share(N, worker + 1, workers, LANES);
        gemm(
            M, j1 - j0, K, a, a_row, a_col, b + j0 * b_col, b_row, b_col, c + j0, c_row, init ? init + j0 : NULL,
            init_row, panel);
    } else {
        const int64_t m0 = share(M, worker, workers, TILE_ROWS), m1 = share(M, worker + 1, workers, TILE_ROWS);
        gemm(
            m1 - m0, N, K, a + m0 * a_row, a_row, a_col, b, b_row, b_col, c + m0 * c_row, c_row,
            init ? init + m0 * init_row : NULL, init_row, panel);
    }
}

#endif
