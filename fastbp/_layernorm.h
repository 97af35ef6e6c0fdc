/* The column sums of LayerNorm's backward pass; the maths is told in fastbp/ops/layernorm.py. */

#ifndef FASTBP_LAYERNORM_H
#define FASTBP_LAYERNORM_H

#include "_vector.h"

enum { LAYERNORM_BLOCK = 32 }; /* rows whose sums are made at a time: dy and x are still in L2, better in L1 */

/* dweight += Σ dy ∘ x̂ and dbias += Σ dy over `rows` rows, in their order, for `parts` vectors of columns (a literal) that
   stay in registers; `left` columns are left from the first of them on. */
INLINE void layernorm_columns(
    int parts, int64_t rows, int64_t C, int64_t left, const real *dy, const real *x, const real *mean, const real *rstd,
    real *dweight, real *dbias) {
    vec dw[4], db[4];
    UNROLL for (int part = 0; part < parts; part++) {
        dw[part] = load(dweight + part * LANES, left - part * LANES);
        db[part] = load(dbias + part * LANES, left - part * LANES);
    }
    for (int64_t n = 0; n < rows; n++) {
        const vec m = splat(mean[n]), r = splat(rstd[n]);
        UNROLL for (int part = 0; part < parts; part++) {
            const int64_t c = part * LANES;
            const vec g = load(dy + n * C + c, left - c);
            dw[part] += g * ((load(x + n * C + c, left - c) - m) * r);
            db[part] += g;
        }
    }
    UNROLL for (int part = 0; part < parts; part++) {
        store(dweight + part * LANES, dw[part], left - part * LANES);
        store(dbias + part * LANES, db[part], left - part * LANES);
    }
}

#endif
