/* C = init + A·B for any strides of A and either orientation of B, out of packed panels and register tiles.

   The product goes block by block so that what is read again and again stays in the second-level cache: PANELS panels of
   B's columns, DEPTH terms deep, against ROWS rows of A. A panel is copied to a worker's scratch, zero-padded where its
   columns do not fill a vector: where B's rows are contiguous, the first tile that runs against it copies it on its way;
   where B lies transposed, it is transposed before. A whose columns lie far apart is copied by the first panel's tiles.
   What comes next of A, B and C is fetched a tile ahead. Later terms start from what C holds, so an element of C is one
   chain of multiply-adds in the order of k whatever the blocking: the same bits for every split of the work. The twin of
   fastbp/simd/blocks.py, which takes a panel that C's last columns do not fill through scratch; here a tile masks them. */

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

/* As in fastbp/simd/scratch.py, which sizes it: the most that a block may hold, and what it holds untuned. */
#define DEPTH 384
#define ROWS 128
#define PANELS 12

static struct {
    int64_t depth, rows, panels;
} blocking = {DEPTH, ROWS, PANELS};

#define FAR_BYTES 2048 /* columns of A further apart than this are out of reach of the hardware's prefetching */

#define FEW_ROWS 192             /* rows of a worker that pay for copying all of B */
#define FEWEST_ROWS 32           /* the same where B is small and stays in the second-level cache */
#define SMALL_BYTES (1 << 19)    /* such a B */
#define CHUNK (64 / REAL_BYTES)  /* terms between bursts of fetching: a row of A moves on by a line */
#define AHEAD 12                 /* terms between a load and its prefetch */
#define FAR_AHEAD 32             /* the same for far columns, which come from memory */
#define CACHED_BYTES (1 << 17)   /* an output larger than this is fetched ahead of its tile */

/* The compiler may not know where this comes from, so it keeps it rather than working it out again. */
#define HIDE(x) __asm__("" : "+r"(x))

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Tiles below each other, `count` of them: where the first one's operands lie, A's `a_step` from tile to tile, and where
   they are copied on the way, to where; how far from A to fetch what comes next of it, and `soon`, rows of B for the next
   panel. */
typedef struct {
    int64_t count;
    const real *a;
    int64_t a_row, a_col, a_step, a_ahead;
    const real *b; /* the packed panel, or B itself where `pack_b` says where the panel goes */
    int64_t b_row;
    real *c;
    int64_t c_row, columns; /* fewer than its vectors hold where C ends */
    const real *init; /* NULL starts from zero */
    int64_t init_row;
    real *pack_a, *pack_b;
    real *sums; /* grow by the rows of B that are copied; or NULL */
    const real *soon, *soon_end;
    int fetch_c;
} Tiles;

/* Copied tiles of A are set apart by a line more than they need: else all would fall into the same sets of the cache. */
#define TILE_ELEMENTS(depth) ((depth) * TILE_ROWS + 64 / REAL_BYTES)

/* What a tile does besides: A's columns are far apart, so fetch them term by term, or copy them too; copy B's rows. */
enum { FETCH_A = 1, PACK_A = 2, PACK_B = 4 };

/* `rows`, `vectors` and `extra` are literals at every call, so the loops over them unroll and `sum` lives in registers.
   Row i of A is reached from one of two pointers by a multiple of its stride that an address can hold: a pointer a row
   would not leave enough registers. Fetching is spread over the chunks: one burst of all would fill the line buffers. */
INLINE void tile(
    const int rows, const int vectors, const int extra, int64_t depth, const Tiles *t, const real *a, real *pack_a, real *c,
    const real *init, const real **soon)
{
    vec sum[TILE_ROWS][TILE_VECTORS], total[TILE_VECTORS];
    const int64_t a_row = t->a_row, a_col = t->a_col, b_row = extra & PACK_B ? t->b_row : vectors * LANES;
    int64_t row3 = 3 * a_row;
    const real *a4 = a + 4 * a_row, *b = t->b, *next = c + rows * t->c_row;
    real *pack_b = t->pack_b;
    HIDE(row3);
    HIDE(a4);
#define A_AT(i, from, from4) (((i) < 4 ? (from) : (from4)) + ((i) % 4 == 3 ? row3 : (i) % 4 * a_row))
    const int whole = t->columns == vectors * LANES;
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++) {
            const real *at = init + i * t->init_row + j * LANES;
            sum[i][j] = !init ? (vec){0} : whole ? load_whole(at) : load(at, t->columns - j * LANES);
        }
    if (extra & PACK_B)
        UNROLL for (int j = 0; j < vectors; j++)
            total[j] = t->sums ? load_whole(t->sums + j * LANES) : (vec){0};
    int64_t unfetched = t->fetch_c ? vectors : 0;
    for (int64_t rest = depth; rest > 0; rest -= CHUNK) {
        if (unfetched) {
            UNROLL for (int i = 0; i < rows; i++)
                __builtin_prefetch(next + i * t->c_row, 1);
            unfetched--;
            next += LANES;
        }
        if (!(extra & (FETCH_A | PACK_A))) {
            const real *there = a + t->a_ahead, *there4 = a4 + t->a_ahead;
            UNROLL for (int i = 0; i < rows; i++)
                __builtin_prefetch(A_AT(i, there, there4));
        }
        if (!(extra & PACK_B) && *soon < t->soon_end) {
            UNROLL for (int j = 0; j < vectors; j++)
                __builtin_prefetch(*soon + j * LANES, 0, 2);
            *soon += t->b_row;
        }
        for (int64_t left = least(rest, CHUNK); left > 0; left--) {
            vec y[TILE_VECTORS];
            UNROLL for (int j = 0; j < vectors; j++) {
                y[j] = load_whole(b + j * LANES);
                if (extra & PACK_B) {
                    __builtin_prefetch(b + AHEAD * b_row + j * LANES);
                    store_whole(pack_b + j * LANES, y[j]);
                    total[j] += y[j];
                }
            }
            if (extra & (FETCH_A | PACK_A))
                __builtin_prefetch(a + (extra & PACK_A ? FAR_AHEAD * a_col : t->a_ahead));
            if (extra & PACK_A) {
                memcpy(pack_a, a, TILE_ROWS * REAL_BYTES);
                pack_a += TILE_ROWS;
            }
            UNROLL for (int i = 0; i < rows; i++) {
                const vec x = splat(*A_AT(i, a, a4));
                UNROLL for (int j = 0; j < vectors; j++)
                    sum[i][j] += x * y[j];
            }
            a += a_col;
            a4 += a_col;
            b += b_row;
            pack_b += vectors * LANES;
        }
    }
#undef A_AT
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++) {
            real *at = c + i * t->c_row + j * LANES;
            if (whole)
                store_whole(at, sum[i][j]);
            else
                store(at, sum[i][j], t->columns - j * LANES);
        }
    if (extra & PACK_B && t->sums)
        UNROLL for (int j = 0; j < vectors; j++)
            store_whole(t->sums + j * LANES, total[j]);
}

INLINE void tiles(const int rows, const int vectors, const int extra, int64_t depth, const Tiles *t) {
    const real *a = t->a, *init = t->init, *soon = t->soon;
    real *pack_a = t->pack_a, *c = t->c;
    for (int64_t left = t->count; left > 0; left--) {
        tile(rows, vectors, extra, depth, t, a, pack_a, c, init, &soon);
        a += t->a_step;
        pack_a += TILE_ELEMENTS(depth);
        c += rows * t->c_row;
        init = init ? init + rows * t->init_row : NULL;
    }
}

typedef void Kernel(int64_t depth, const Tiles *t);

/* The forms of `tiles`, each a function of its own so that the compiler gives its loop all registers. */
#define FORM(name, rows, vectors, extra)                                                                 \
    static __attribute__((noinline, unused)) void name##_##vectors(int64_t depth, const Tiles *t) {       \
        tiles(rows, vectors, extra, depth, t);                                                           \
    }
#define FORMS(vectors)                                                                                   \
    FORM(tiles_plain, TILE_ROWS, vectors, 0)                                                              \
    FORM(tiles_fetch_a, TILE_ROWS, vectors, FETCH_A)                                                      \
    FORM(tiles_pack_a, TILE_ROWS, vectors, PACK_A)                                                        \
    FORM(tiles_pack_b, TILE_ROWS, vectors, PACK_B)                                                        \
    FORM(tiles_fetch_a_pack_b, TILE_ROWS, vectors, FETCH_A | PACK_B)                                      \
    FORM(tiles_pack_a_pack_b, TILE_ROWS, vectors, PACK_A | PACK_B)                                        \
    FORM(tiles_last4, 4, vectors, 0)                                                                      \
    FORM(tiles_last2, 2, vectors, 0)                                                                      \
    FORM(tiles_last1, 1, vectors, 0)
#define TABLE(vectors)                                                                                   \
    {tiles_plain_##vectors,  tiles_fetch_a_##vectors,        tiles_pack_a_##vectors,       NULL,            \
     tiles_pack_b_##vectors, tiles_fetch_a_pack_b_##vectors, tiles_pack_a_pack_b_##vectors}
#define LAST_TABLE(vectors) {NULL, tiles_last1_##vectors, tiles_last2_##vectors, NULL, tiles_last4_##vectors}

FORMS(1)
FORMS(2)
#if TILE_VECTORS > 2
FORMS(3)
static Kernel *const WHOLE[][7] = {TABLE(1), TABLE(2), TABLE(3)}; /* [vectors - 1][extra] */
static Kernel *const LAST[][5] = {LAST_TABLE(1), LAST_TABLE(2), LAST_TABLE(3)}; /* [vectors - 1][rows] */
#else
static Kernel *const WHOLE[][7] = {TABLE(1), TABLE(2)};
static Kernel *const LAST[][5] = {LAST_TABLE(1), LAST_TABLE(2)};
#endif

/* All tiles of A's rows against one panel. `copies` is where A is copied to by the first panel and read from by the
   others; NULL where it is read where it lies. The last rows always are. To the first panel A comes from far, so a whole
   tile's time before it is read: what the tile below needs, or where A lies by columns, the next line of each. */
static __attribute__((unused)) void run_panel(
    int64_t vectors, int64_t rows, int64_t depth, int first_panel, real *copies, Tiles t)
{
    const int64_t whole = rows / TILE_ROWS;
    Tiles last = t;
    int extra = 0;
    t.a_step = TILE_ROWS * t.a_row;
    t.a_ahead = first_panel ? t.a_step : CHUNK;
    if (copies && first_panel)
        t.pack_a = copies, extra = PACK_A;
    else if (copies)
        t.a = copies, t.a_row = 1, t.a_col = TILE_ROWS, t.a_step = TILE_ELEMENTS(depth), t.a_ahead = CHUNK * TILE_ROWS;
    else if (t.a_row == 1)
        t.a_ahead = first_panel ? CHUNK : AHEAD * t.a_col, extra = FETCH_A;
    if (t.pack_b) {
        t.count = 1;
        WHOLE[vectors - 1][extra | PACK_B](depth, &t);
        t.a += t.a_step;
        t.pack_a += TILE_ELEMENTS(depth);
        t.c += TILE_ROWS * t.c_row;
        t.init = t.init ? t.init + TILE_ROWS * t.init_row : NULL;
        t.b = last.b = t.pack_b;
    }
    t.count = t.pack_b ? whole - 1 : whole;
    WHOLE[vectors - 1][extra](depth, &t);
    last.count = 1, last.a_ahead = CHUNK;
    for (int64_t height = 4, m = whole * TILE_ROWS; height; height /= 2)
        if ((rows - m) & height) {
            Tiles here = last;
            here.a += m * last.a_row;
            here.c += m * last.c_row;
            here.init = last.init ? last.init + m * last.init_row : NULL;
            LAST[vectors - 1][height](depth, &here);
            m += height;
        }
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

/* Copies a panel of B whose rows are contiguous; `sums` grow by them, where they are given. */
static void pack_rows(
    int64_t depth, int64_t columns, int64_t width, const real *b, int64_t b_row, real *panel, real *sums)
{
    for (int64_t j = 0; j < width; j += LANES) {
        const int64_t left = columns - j;
        vec total = sums && left > 0 ? load(sums + j, left) : (vec){0};
        for (int64_t k = 0; k < depth; k++) {
            const vec y = left > 0 ? load(b + k * b_row + j, left) : (vec){0};
            store_whole(panel + k * width + j, y);
            total += y;
        }
        if (sums && left > 0)
            store(sums + j, total, left);
    }
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

/* What a product does besides: `run` with each block of C when its sums are done, while it is in the cache, where `in` and
   `out` lie like C; `sums`, one a column, grow by B's rows, whose columns must be contiguous. Each may be NULL. */
typedef struct Also Also;
struct Also {
    void (*run)(const Also *also, const real *c, int64_t c_row, int64_t rows, int64_t columns);
    const real *in;
    int64_t in_row;
    real *out;
    int64_t out_row;
    real *sums;
};

/* The same for the part of C that begins at row m and column j. */
INLINE Also also_from(const Also *also, int64_t m, int64_t j) {
    if (!also)
        return (Also){NULL};
    Also moved = *also;
    moved.in = also->in ? also->in + m * also->in_row + j : NULL;
    moved.out = also->out ? also->out + m * also->out_row + j : NULL;
    moved.sums = also->sums ? also->sums + j : NULL;
    return moved;
}

/* Where part `index` of `parts` begins in `size`. */
INLINE int64_t cut(int64_t size, int64_t index, int64_t parts) { return size * index / parts; }

/* `gemm` for columns that one block of panels holds. */
static void block_product(
    int64_t M, int64_t N, int64_t K, const real *a, int64_t a_row, int64_t a_col, const real *b, int64_t b_row,
    int64_t b_col, real *c, int64_t c_row, const real *init, int64_t init_row, real *scratch, Also also)
{
    const int64_t vectors = ceiling(N, LANES), panels = ceiling(vectors, TILE_VECTORS), depths = ceiling(K, blocking.depth);
    const int64_t tiles = ceiling(M, TILE_ROWS), blocks = M <= ROWS ? 1 : ceiling(M, blocking.rows);
    const int64_t kept = blocks > 1 ? vectors : least(vectors, TILE_VECTORS); /* else a panel is not met again */
    real *behind = scratch + kept * LANES * least(K, blocking.depth);
    real *copied = a_row == 1 && a_col * REAL_BYTES > FAR_BYTES && panels > 1 ? behind : NULL;
    for (int64_t q = 0; q < depths; q++) {
        const int64_t k = cut(K, q, depths), depth = cut(K, q + 1, depths) - k;
        const real *begin = k ? c : init;
        const int64_t begin_row = k ? c_row : init_row;
        for (int64_t s = 0; s < blocks; s++) {
            const int64_t m = cut(tiles, s, blocks) * TILE_ROWS;
            const int64_t rows = least(M, cut(tiles, s + 1, blocks) * TILE_ROWS) - m;
            for (int64_t p = 0; p < panels; p++) {
                const int64_t v = cut(vectors, p, panels), count = cut(vectors, p + 1, panels) - v;
                const int64_t j = v * LANES, width = count * LANES, columns = least(N - j, width);
                const real *at_b = b + k * b_row + j * b_col;
                real *panel = blocks > 1 ? scratch + j * depth : scratch;
                const int on_the_way = s == 0 && b_col == 1 && columns == width && rows >= TILE_ROWS;
                real *sums = also.sums ? also.sums + j : NULL;
                if (s == 0 && b_col != 1)
                    pack_columns(depth, columns, width, at_b, b_col, panel);
                else if (s == 0 && !on_the_way)
                    pack_rows(depth, columns, width, at_b, b_row, panel, sums);
                const Tiles t = {
                    .a = a + k * a_col + m * a_row, .a_row = a_row, .a_col = a_col,
                    .b = on_the_way ? at_b : panel, .b_row = b_row, .pack_b = on_the_way ? panel : NULL,
                    .c = c + m * c_row + j, .c_row = c_row, .columns = columns,
                    .init = begin ? begin + m * begin_row + j : NULL, .init_row = begin_row,
                    .sums = sums, .soon = at_b + width,
                    .soon_end = on_the_way && p + 1 < panels ? at_b + width + depth * b_row : NULL,
                    .fetch_c = M * c_row * REAL_BYTES > CACHED_BYTES,
                };
                run_panel(count, rows, depth, p == 0, copied, t);
            }
            if (also.run && q == depths - 1) {
                const Also here = also_from(&also, m, 0);
                also.run(&here, c + m * c_row, c_row, rows, N);
            }
        }
    }
}

/* C (M, N) = init + A (M, K) · B (K, N); strides count elements, one of A's and one of B's must be 1.

   `init` is NULL (start from zero) or the first values, `init_row` their row stride: C itself to accumulate, a bias with
   stride 0. `scratch` is the worker's, of `panel_elements(K, N, M, …)` elements. `also` may be NULL. */
static __attribute__((unused)) void gemm_also(
    int64_t M, int64_t N, int64_t K, const real *a, int64_t a_row, int64_t a_col, const real *b, int64_t b_row,
    int64_t b_col, real *c, int64_t c_row, const real *init, int64_t init_row, real *scratch, const Also *also)
{
    if (M <= 0 || N <= 0)
        return;
    const int64_t vectors = ceiling(N, LANES), blocks = ceiling(vectors, blocking.panels * TILE_VECTORS);
    for (int64_t s = 0; s < blocks; s++) {
        const int64_t j = cut(vectors, s, blocks) * LANES;
        const int64_t columns = least(N, cut(vectors, s + 1, blocks) * LANES) - j;
        block_product(
            M, columns, K, a, a_row, a_col, b + j * b_col, b_row, b_col, c + j, c_row, init ? init + j : NULL,
            init_row, scratch, also_from(also, 0, j));
    }
}

static inline __attribute__((unused)) void gemm(
    int64_t M, int64_t N, int64_t K, const real *a, int64_t a_row, int64_t a_col, const real *b, int64_t b_row,
    int64_t b_col, real *c, int64_t c_row, const real *init, int64_t init_row, real *scratch)
{
    gemm_also(M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, scratch, NULL);
}

/* Where the part of `size` that belongs to a worker begins, cut at multiples of `unit`; it ends where the next begins. */
static inline __attribute__((unused)) int64_t share(int64_t size, int64_t worker, int64_t workers, int64_t unit) {
    const int64_t units = (size + unit - 1) / unit;
    return least(size, units * worker / workers * unit);
}

/* A worker's share of `gemm_also`. Rows, so that one worker makes and reads the same rows from op to op and finds them in
   its own cache; columns where there are too few rows to pay for copying all of B, and where A is dearer to copy. */
static __attribute__((unused)) void shared_gemm_also(
    int64_t worker, int64_t workers, int64_t M, int64_t N, int64_t K, const real *a, int64_t a_row, int64_t a_col,
    const real *b, int64_t b_row, int64_t b_col, real *c, int64_t c_row, const real *init, int64_t init_row,
    real *scratch, const Also *also)
{
    const int wide = N >= 2 * LANES * workers;
    const int64_t few = K * N * REAL_BYTES > SMALL_BYTES ? FEW_ROWS : FEWEST_ROWS;
    int64_t m0 = 0, m1 = M, j0 = 0, j1 = N;
    if (wide && (M < few * workers || (a_col != 1 && N > M)))
        j0 = share(N, worker, workers, LANES), j1 = share(N, worker + 1, workers, LANES);
    else
        m0 = share(M, worker, workers, TILE_ROWS), m1 = share(M, worker + 1, workers, TILE_ROWS);
    Also here = also_from(also, m0, j0);
    if (m0) /* whoever has the first rows sums B's */
        here.sums = NULL;
    gemm_also(
        m1 - m0, j1 - j0, K, a + m0 * a_row, a_row, a_col, b + j0 * b_col, b_row, b_col, c + m0 * c_row + j0, c_row,
        init ? init + m0 * init_row + j0 : NULL, init_row, scratch, &here);
}

static inline __attribute__((unused)) void shared_gemm(
    int64_t worker, int64_t workers, int64_t M, int64_t N, int64_t K, const real *a, int64_t a_row, int64_t a_col,
    const real *b, int64_t b_row, int64_t b_col, real *c, int64_t c_row, const real *init, int64_t init_row, real *scratch)
{
    shared_gemm_also(
        worker, workers, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, scratch, NULL);
}

#endif
