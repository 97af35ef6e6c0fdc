/* Softmax and cross-entropy of the head down the columns of zᵀ (V, N): a vector holds one entry's logits for LANES rows, so
   a row's largest logit and its sum stay in their lane. What a row gets depends on V alone, not on who shares the rows or
   how they are sliced. The twin of fastbp/kernels/linear_cross_entropy.py. */

#ifndef FASTBP_CROSS_ENTROPY_H
#define FASTBP_CROSS_ENTROPY_H

#include <float.h>

#include "_gemm.h"
#include "_vector_math.h"

enum {
    STRIP_VECTORS = 8, /* columns that go together: a line or more of memory for each entry */
    ENTRIES = 64       /* of a chunk, whose sum joins the rows' totals as one */
};

/* The largest logit of each column and Σ e^(z − largest), summed chunk by chunk. Differences are taken from a finite number,
   so −∞ counts nothing. */
static void column_sums(int64_t V, int64_t N, int64_t columns, const real *z, vec *largest, vec *total) {
    const int64_t vectors = ceiling(columns, LANES);
    const vec lowest = splat(REAL_BYTES == 4 ? -FLT_MAX : -DBL_MAX);
    for (int64_t j = 0; j < vectors; j++)
        largest[j] = lowest, total[j] = (vec){0};
    for (int pass = 0; pass < 2; pass++)
        for (int64_t begin = 0; begin < V; begin += ENTRIES)
            for (int64_t j = 0; j < vectors; j++) {
                const int64_t end = least(begin + ENTRIES, V), left = columns - j * LANES;
                const real *at = z + j * LANES;
                vec highest = largest[j], sum = {0};
                for (int64_t v = begin; pass == 0 && v < end; v++)
                    highest = larger(load(at + v * N, left), highest);
                for (int64_t v = begin; pass == 1 && v < end; v++)
                    sum += vector_exp_scaled(load(at + v * N, left) - highest, splat(1));
                largest[j] = highest;
                total[j] += sum;
            }
}

/* losses = log Σ e^z − z[target] for at most STRIP_VECTORS vectors of columns; where `dlosses` are given, z becomes its
   gradient (softmax(z) − onehot(target)) · dlosses. */
static void strip_cross_entropy(
    int64_t V, int64_t N, int64_t columns, real *z, const int32_t *targets, real *losses, const real *dlosses)
{
    vec largest[STRIP_VECTORS], total[STRIP_VECTORS];
    column_sums(V, N, columns, z, largest, total);
    for (int64_t n = 0; n < columns; n++) {
        const real highest = largest[n / LANES][n % LANES], sum = total[n / LANES][n % LANES];
        losses[n] = (real)log(sum) - (z[targets[n] * N + n] - highest);
    }
    if (!dlosses)
        return;
    for (int64_t j = 0; j * LANES < columns; j++)
        total[j] = load(dlosses + j * LANES, columns - j * LANES) / total[j];
    for (int64_t v = 0; v < V; v++)
        for (int64_t j = 0; j * LANES < columns; j++) {
            real *at = z + v * N + j * LANES;
            const vec e = vector_exp_scaled(load(at, columns - j * LANES) - largest[j], splat(1));
            store(at, e * total[j], columns - j * LANES);
        }
    for (int64_t n = 0; n < columns; n++)
        z[targets[n] * N + n] -= dlosses[n];
}

/* A worker's share of the rows, which are zᵀ's columns. */
static __attribute__((unused)) void cross_entropy(
    int64_t worker, int64_t workers, int64_t V, int64_t N, real *z, const int32_t *targets, real *losses,
    const real *dlosses)
{
    const int64_t stop = share(N, worker + 1, workers, 64 / REAL_BYTES);
    for (int64_t n = share(N, worker, workers, 64 / REAL_BYTES); n < stop; n += STRIP_VECTORS * LANES) {
        const int64_t columns = least(STRIP_VECTORS * LANES, stop - n);
        strip_cross_entropy(V, N, columns, z + n, targets + n, losses + n, dlosses ? dlosses + n : NULL);
    }
}

#endif
