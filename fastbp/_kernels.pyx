# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The ops' kernels, compiled ahead of time: `address("linear_forward")` is a C function of the one ABI,

    void kernel(const int64_t *args, int64_t worker, int64_t workers)

`args` holds the phase, the op's dims in order, its attributes (bits of a float64) and the addresses of its arrays in the
order that `fastbp/ops/op.py` lays down. The maths and its traps are told in fastbp/ops/<op>.py; here is the same with
vectors. This one source is compiled once for every instruction set and real type (setup.py): `real` is float or double,
`vec` is a register of LANES reals, and operators on vecs work lane by lane. A literal becomes a vec by `splat`.

Workers share outputs, never sums, and every sum over rows is one chain an element in the order of the rows: the same
bits for every number of workers and for every slice.
"""

from libc.math cimport INFINITY, isfinite, log, sqrt
from libc.stdint cimport int32_t, int64_t, intptr_t, uint16_t

cdef extern from "_vector_math.h" nogil:
    ctypedef float real
    ctypedef float vec
    const int64_t LANES
    const int64_t VECTOR_BYTES
    const int64_t REAL_BYTES
    vec splat(real x)
    vec load(const real *at, int64_t left)
    void store(real *at, vec x, int64_t left)
    void store_past(real *at, vec x)
    void streams_done()
    vec first(vec a, vec b, int64_t left)
    vec larger(vec a, vec b)
    real lane_sum(vec x)
    real lane_largest(vec x)
    double square_sum(const real *x, int64_t size)
    vec vector_exp_scaled(vec x, vec scale)
    vec vector_sqrt(vec x)

cdef extern from "_gelu.h" nogil:
    vec gelu_tanh(vec x)
    vec gelu_tanh_backward(vec dy, vec x)
    vec gelu_erf(vec x)
    vec gelu_erf_backward(vec dy, vec x)

cdef extern from "_layernorm.h" nogil:
    const int64_t LAYERNORM_BLOCK
    void layernorm_columns(
        int parts, int64_t rows, int64_t C, int64_t left, const real *dy, const real *x, const real *mean,
        const real *rstd, real *dweight, real *dbias)

cdef extern from "_gemm.h" nogil:
    const int64_t CACHED_BYTES
    const int64_t TILE_ROWS
    const int64_t TILE_VECTORS
    const int64_t DEPTH
    const int64_t ROWS
    const int64_t PANELS
    struct _Blocking "":
        int64_t depth
        int64_t rows
        int64_t panels
    _Blocking blocking
    int64_t least(int64_t a, int64_t b)
    int64_t share(int64_t size, int64_t worker, int64_t workers, int64_t unit)
    void gemm(
        int64_t M, int64_t N, int64_t K, const real *a, int64_t a_row, int64_t a_col, const real *b, int64_t b_row,
        int64_t b_col, real *c, int64_t c_row, const real *init, int64_t init_row, real *panel)
    void shared_gemm(
        int64_t worker, int64_t workers, int64_t M, int64_t N, int64_t K, const real *a, int64_t a_row, int64_t a_col,
        const real *b, int64_t b_row, int64_t b_col, real *c, int64_t c_row, const real *init, int64_t init_row,
        real *panel)
    ctypedef struct Also:
        void (*run)(const Also *also, const real *c, int64_t c_row, int64_t rows, int64_t columns) noexcept nogil
        const real *before "in"
        int64_t before_row "in_row"
        real *out
        int64_t out_row
        real *sums
    void shared_gemm_also(
        int64_t worker, int64_t workers, int64_t M, int64_t N, int64_t K, const real *a, int64_t a_row, int64_t a_col,
        const real *b, int64_t b_row, int64_t b_col, real *c, int64_t c_row, const real *init, int64_t init_row,
        real *panel, const Also *also)

cdef extern from "_cross_entropy.h" nogil:
    void cross_entropy(
        int64_t worker, int64_t workers, int64_t V, int64_t N, real *z, const int32_t *targets, real *losses,
        const real *dlosses)

cdef extern from "_dropout.h" nogil:
    ctypedef struct Dropout:
        pass
    Dropout dropout_of(const int32_t *state, double rate, double place)
    void drop_row(const Dropout *drop, int64_t row, int64_t size, const real *x, real *y)

cdef extern from "_bfloat16.h" nogil:
    void pack_row(const real *x, uint16_t *y, int64_t size)
    void unpack_row(const uint16_t *x, real *y, int64_t size)

cdef extern from "_attention.h" nogil:
    void attend(
        int64_t worker, int64_t workers, int64_t B, int64_t T, int64_t C, int64_t H, int64_t chunk, const real *qkv,
        real *o, real *lse, real *scratch, const Dropout *drop, int64_t row)
    void attend_backward(
        int64_t worker, int64_t workers, int64_t B, int64_t T, int64_t C, int64_t H, int64_t chunk, const real *dout,
        const real *qkv, const real *o, const real *lse, real *dqkv, real *scratch, const Dropout *drop, int64_t row)

cdef extern from *:
    """
    static double fastbp_number(const int64_t *at) { double x; memcpy(&x, at, sizeof x); return x; }

    enum { ADAMW_PART = 4096 };
    static const double SMALLEST_SCALE = 1e-30; /* as in fastbp/kernels/adamw.py */

    #if defined(__x86_64__)
    #define FASTBP_HAS(feature) (__builtin_cpu_init(), __builtin_cpu_supports(feature) != 0)
    #else
    #define FASTBP_HAS(feature) 0
    #endif
    static int fastbp_has_avx2(void) { return FASTBP_HAS("avx2"); }
    static int fastbp_has_fma(void) { return FASTBP_HAS("fma"); }
    static int fastbp_has_avx512f(void) { return FASTBP_HAS("avx512f"); }
    static int fastbp_has_avx512vl(void) { return FASTBP_HAS("avx512vl"); }
    static int fastbp_has_avx512dq(void) { return FASTBP_HAS("avx512dq"); }
    static int fastbp_has_avx512bw(void) { return FASTBP_HAS("avx512bw"); }
    """
    const int64_t ADAMW_PART
    const double SMALLEST_SCALE
    double number "fastbp_number"(const int64_t *at) noexcept nogil
    bint has_avx2 "fastbp_has_avx2"()
    bint has_fma "fastbp_has_fma"()
    bint has_avx512f "fastbp_has_avx512f"()
    bint has_avx512vl "fastbp_has_avx512vl"()
    bint has_avx512dq "fastbp_has_avx512dq"()
    bint has_avx512bw "fastbp_has_avx512bw"()


cdef inline real *reals(int64_t address) noexcept nogil:
    return <real *><intptr_t>address


cdef inline int32_t *ints(int64_t address) noexcept nogil:
    return <int32_t *><intptr_t>address


cdef inline double *doubles(int64_t address) noexcept nogil:
    return <double *><intptr_t>address


cdef inline void add(const real *x, real *total, int64_t size) noexcept nogil:
    """total += x, element by element."""
    cdef int64_t i = 0
    while i < size:
        store(total + i, load(total + i, size - i) + load(x + i, size - i), size - i)
        i += LANES


cdef inline void clear(real *x, int64_t size) noexcept nogil:
    cdef int64_t i = 0
    while i < size:
        store(x + i, splat(0), size - i)
        i += LANES


# ---- embedding -------------------------------------------------------------------------------------------------------


cdef void embedding_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t N = args[1], T = args[2], C = args[3], n, c
    cdef int32_t *tokens = ints(args[5])
    cdef real *table = reals(args[6])
    cdef real *positions = reals(args[7])
    cdef real *x = reals(args[8])
    cdef real *token
    cdef real *position
    for n in range(share(N, worker, workers, 1), share(N, worker + 1, workers, 1)):
        token = table + tokens[n] * C
        position = positions + n % T * C
        c = 0
        while c < C:
            store(x + n * C + c, load(token + c, C - c) + load(position + c, C - c), C - c)
            c += LANES


cdef void embedding_backward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t N = args[1], T = args[2], C = args[3], n
    cdef real *dx = reals(args[5])
    cdef int32_t *tokens = ints(args[6])
    cdef real *dtable = reals(args[7])
    cdef real *dpositions = reals(args[8])
    cdef int64_t left = share(C, worker, workers, 64 // REAL_BYTES)
    cdef int64_t width = share(C, worker + 1, workers, 64 // REAL_BYTES) - left
    for n in range(N):
        add(dx + n * C + left, dtable + tokens[n] * C + left, width)
        if dpositions:
            add(dx + n * C + left, dpositions + n % T * C + left, width)


# ---- layernorm -------------------------------------------------------------------------------------------------------


cdef void layernorm_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t N = args[1], C = args[2], n, c
    cdef real eps = <real>number(args + 3)
    cdef real *weight = reals(args[5])
    cdef real *bias = reals(args[6])
    cdef real *mean = reals(args[8])
    cdef real *rstd = reals(args[9])
    cdef real *x
    cdef real *y
    cdef vec total, squares, m, r, centred
    for n in range(share(N, worker, workers, 1), share(N, worker + 1, workers, 1)):
        x = reals(args[4]) + n * C
        y = reals(args[7]) + n * C
        total = splat(0)
        c = 0
        while c < C:
            total = total + load(x + c, C - c)
            c += LANES
        mean[n] = lane_sum(total) / <real>C
        m = splat(mean[n])
        squares = splat(0)
        c = 0
        while c < C:
            centred = first(load(x + c, C - c) - m, splat(0), C - c)
            squares = squares + centred * centred
            c += LANES
        rstd[n] = <real>1 / <real>sqrt(lane_sum(squares) / <real>C + eps)
        r = splat(rstd[n])
        c = 0
        while c < C:
            centred = (load(x + c, C - c) - m) * r
            store(y + c, centred * load(weight + c, C - c) + load(bias + c, C - c), C - c)
            c += LANES


cdef inline void layernorm_backward_row(
    const real *dy, const real *x, const real *weight, vec m, vec r, real *dx, real *stream, bint past,
    int64_t C) noexcept nogil:
    """dx of a row, added to `stream` too where there is one. Where `past`, dx goes past the caches."""
    cdef int64_t c = 0
    cdef vec total = splat(0), along = splat(0), g
    while c < C:
        g = load(dy + c, C - c) * load(weight + c, C - c)
        total = total + g
        along = along + g * ((load(x + c, C - c) - m) * r)
        c += LANES
    total = splat(lane_sum(total) / <real>C)
    along = splat(lane_sum(along) / <real>C)
    c = 0
    while c < C:
        g = load(dy + c, C - c) * load(weight + c, C - c)
        g = (g - total - (load(x + c, C - c) - m) * r * along) * r
        if stream: # before the store of dx: equal addresses but for whole pages would make the load wait for it
            store(stream + c, load(stream + c, C - c) + g, C - c)
        if past:
            store_past(dx + c, g)
        else:
            store(dx + c, g, C - c)
        c += LANES


cdef inline void layernorm_column_sums(
    int64_t rows, int64_t C, int64_t left, int64_t right, const real *dy, const real *x, const real *mean,
    const real *rstd, real *dweight, real *dbias) noexcept nogil:
    """The sums over `rows` rows for columns `left` to `right`, added to what dweight and dbias hold."""
    cdef int64_t c = left
    while c + 4 * LANES <= right:
        layernorm_columns(4, rows, C, right - c, dy + c, x + c, mean, rstd, dweight + c, dbias + c)
        c += 4 * LANES
    while c < right:
        layernorm_columns(1, rows, C, right - c, dy + c, x + c, mean, rstd, dweight + c, dbias + c)
        c += LANES


cdef inline void layernorm_backward_into(
    const int64_t *args, int64_t worker, int64_t workers, real *stream) noexcept nogil:
    """dx of a worker's rows, added to `stream` too where there is one: then nobody reads it soon, and a large one goes
    past the caches. The sums of its columns run through all rows in order; those over the worker's own rows are made in
    blocks, right behind the rows' dx, while dy and x are in the cache."""
    cdef int64_t N = args[1], C = args[2], n, block, end
    cdef int64_t start = share(N, worker, workers, 1), stop = share(N, worker + 1, workers, 1)
    cdef int64_t left = share(C, worker, workers, 64 // REAL_BYTES)
    cdef int64_t right = share(C, worker + 1, workers, 64 // REAL_BYTES)
    cdef real *dy = reals(args[4])
    cdef real *x = reals(args[5])
    cdef real *weight = reals(args[6])
    cdef real *mean = reals(args[7])
    cdef real *rstd = reals(args[8])
    cdef real *dx = reals(args[9])
    cdef real *dweight = reals(args[10])
    cdef real *dbias = reals(args[11])
    cdef bint past = stream != NULL and N * C * REAL_BYTES > CACHED_BYTES
    past = past and C % LANES == 0 and <intptr_t>dx % VECTOR_BYTES == 0
    layernorm_column_sums(start, C, left, right, dy, x, mean, rstd, dweight, dbias)
    n = start
    while n < stop:
        block = n
        end = least(n + LAYERNORM_BLOCK, stop)
        while n < end:
            layernorm_backward_row(
                dy + n * C, x + n * C, weight, splat(mean[n]), splat(rstd[n]), dx + n * C,
                stream + n * C if stream else NULL, past, C)
            n += 1
        layernorm_column_sums(
            end - block, C, left, right, dy + block * C, x + block * C, mean + block, rstd + block, dweight, dbias)
    layernorm_column_sums(
        N - stop, C, left, right, dy + stop * C, x + stop * C, mean + stop, rstd + stop, dweight, dbias)
    if past:
        streams_done()


cdef void layernorm_backward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    layernorm_backward_into(args, worker, workers, NULL)


# ---- linear ----------------------------------------------------------------------------------------------------------


cdef inline void weight_gradient(
    int64_t worker, int64_t workers, int64_t N, int64_t I, int64_t O, const real *x, const real *dy, int64_t dy_row,
    real *dweight, real *dbias, real *panel
) noexcept nogil:
    """dweight += xᵀ·dy, and dbias += Σ_n dy[n] unless it is NULL; both in the order of the rows."""
    cdef Also also
    also.run, also.before, also.before_row, also.out, also.out_row, also.sums = NULL, NULL, 0, NULL, 0, dbias
    shared_gemm_also(worker, workers, I, O, N, x, 1, I, dy, dy_row, 1, dweight, O, dweight, O, panel, &also)


cdef inline void linear_forward_also(
    const int64_t *args, int64_t worker, int64_t workers, const Also *also) noexcept nogil:
    cdef int64_t N = args[1], I = args[2], O = args[3], P = args[4]
    cdef real *x = reals(args[5])
    cdef real *weight = reals(args[6])
    cdef real *bias = reals(args[7])
    cdef real *y = reals(args[8])
    cdef real *panel = reals(args[9]) + worker * P
    shared_gemm_also(worker, workers, N, O, I, x, I, 1, weight, O, 1, y, O, bias, 0, panel, also)


cdef void linear_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    linear_forward_also(args, worker, workers, NULL)


cdef void linear_backward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t N = args[1], I = args[2], O = args[3], P = args[4]
    cdef real *dy = reals(args[5])
    cdef real *x = reals(args[6])
    cdef real *weight = reals(args[7])
    cdef real *dx = reals(args[8])
    cdef real *dweight = reals(args[9])
    cdef real *dbias = reals(args[10])
    cdef real *panel = reals(args[11]) + worker * P
    shared_gemm(worker, workers, N, I, O, dy, O, 1, weight, 1, O, dx, I, NULL, 0, panel)
    weight_gradient(worker, workers, N, I, O, x, dy, O, dweight, dbias, panel)


# ---- qkv -------------------------------------------------------------------------------------------------------------


cdef void qkv_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t N = args[1], C = args[2], P = args[3], i
    cdef real *x = reals(args[4])
    cdef real *y = reals(args[11])
    cdef real *panel = reals(args[12]) + worker * P
    cdef real *weight
    cdef real *bias
    for i in range(3):
        weight = reals(args[5 + i])
        bias = reals(args[8 + i])
        shared_gemm(worker, workers, N, C, C, x, C, 1, weight, C, 1, y + i * C, 3 * C, bias, 0, panel)


cdef void qkv_backward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t N = args[1], C = args[2], P = args[3], i
    cdef real *x = reals(args[5])
    cdef real *dx = reals(args[9])
    cdef real *panel = reals(args[16]) + worker * P
    cdef real *part
    cdef real *weight
    cdef real *dweight
    cdef real *dbias
    for i in range(3):
        part = reals(args[4]) + i * C
        weight = reals(args[6 + i])
        dweight = reals(args[10 + i])
        dbias = reals(args[13 + i])
        shared_gemm(worker, workers, N, C, C, part, 3 * C, 1, weight, 1, C, dx, C, dx if i else NULL, C, panel)
        weight_gradient(worker, workers, N, C, C, x, part, 3 * C, dweight, dbias, panel)


# ---- softmax ---------------------------------------------------------------------------------------------------------


cdef inline real largest(const real *s, int64_t size) noexcept nogil:
    """The largest of s."""
    cdef int64_t j = 0
    cdef vec lowest = splat(<real>-INFINITY), highest = lowest
    while j < size:
        highest = larger(first(load(s + j, size - j), lowest, size - j), highest)
        j += LANES
    return lane_largest(highest)


cdef inline real exp_and_sum(const real *s, real *p, int64_t size, vec scale, vec highest) noexcept nogil:
    """p = exp(scale · (s − highest)); returns Σ p. s and p may be the same row.

    The difference comes first: scale · s − highest contracts to one rounding, which can leave the largest score above 0.
    """
    cdef int64_t j = 0
    cdef vec total = splat(0), e
    while j < size:
        e = vector_exp_scaled(load(s + j, size - j) - highest, scale)
        store(p + j, e, size - j)
        total = total + first(e, splat(0), size - j)
        j += LANES
    return lane_sum(total)


cdef inline void multiply(real *x, vec factor, int64_t size) noexcept nogil:
    cdef int64_t j = 0
    while j < size:
        store(x + j, load(x + j, size - j) * factor, size - j)
        j += LANES


cdef inline real softmax_row(const real *s, real *p, int64_t seen, int64_t size, real scale) noexcept nogil:
    """p = softmax(scale · s) over the first `seen` columns, 0 behind; returns log Σ exp. s and p may be the same row."""
    cdef real highest = largest(s, seen)
    cdef real total = exp_and_sum(s, p, seen, splat(scale), splat(highest))
    multiply(p, splat(<real>1 / total), seen)
    clear(p + seen, size - seen)
    return highest * scale + <real>log(total)


cdef inline void softmax_backward_row(const real *dp, const real *p, real *ds, int64_t size, real scale) noexcept nogil:
    """ds = scale · p ∘ (dp − Σ dp·p) over the first `size` columns; dp and ds may be the same row."""
    cdef int64_t j = 0
    cdef vec total = splat(0)
    while j < size:
        total = total + load(dp + j, size - j) * load(p + j, size - j)
        j += LANES
    total = splat(lane_sum(total))
    j = 0
    while j < size:
        store(ds + j, load(p + j, size - j) * (load(dp + j, size - j) - total) * splat(scale), size - j)
        j += LANES


cdef void softmax_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t N = args[1], T = args[2], n
    cdef real scale = <real>number(args + 3)
    cdef real *s = reals(args[4])
    cdef real *p = reals(args[5])
    for n in range(share(N, worker, workers, 1), share(N, worker + 1, workers, 1)):
        softmax_row(s + n * T, p + n * T, n % T + 1, T, scale)


cdef void softmax_backward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t N = args[1], T = args[2], n
    cdef real scale = <real>number(args + 3)
    cdef real *dp = reals(args[4])
    cdef real *p = reals(args[5])
    cdef real *ds = reals(args[6])
    for n in range(share(N, worker, workers, 1), share(N, worker + 1, workers, 1)):
        softmax_backward_row(dp + n * T, p + n * T, ds + n * T, T, scale)


# ---- attention -------------------------------------------------------------------------------------------------------


cdef inline void attention_forward_into(
    int64_t worker, int64_t workers, const int64_t *dims, const real *qkv, real *o, real *p, real *panel,
    const Dropout *drop, int64_t row, real *kept) noexcept nogil:
    """`dims` are B T C H R P. With dropout `kept` takes a band's weights times their factors; `row` is the first of M."""
    cdef int64_t B = dims[0], T = dims[1], C = dims[2], H = dims[3], R = dims[4]
    cdef int64_t D = C // H, wide = 3 * C, task, b, h, r, end, i
    cdef real scale = <real>(1 / sqrt(<double>D))
    cdef const real *q
    cdef const real *band
    cdef real *weights
    cdef real *out
    for task in range(share(B * H, worker, workers, 1), share(B * H, worker + 1, workers, 1)):
        b = task // H
        h = task % H
        q = qkv + b * T * wide + h * D
        out = o + b * T * C + h * D
        weights = p + task * T * T
        r = 0
        while r < T:
            end = least(r + R, T)
            gemm(
                end - r, end, D, q + r * wide, wide, 1, q + C, 1, wide, weights + r * T, T, NULL, 0, panel)
            for i in range(r, end):
                softmax_row(weights + i * T, weights + i * T, i + 1, T, scale)
            band = weights + r * T
            if drop != NULL:
                for i in range(r, end):
                    drop_row(drop, row + task * T + i, end, weights + i * T, kept + (i - r) * T)
                band = kept
            gemm(
                end - r, D, end, band, T, 1, q + 2 * C, wide, 1, out + r * C, C, NULL, 0, panel)
            r += R


cdef void attention_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef real *panel = reals(args[10]) + worker * args[6]
    attention_forward_into(
        worker, workers, args + 1, reals(args[7]), reals(args[8]), reals(args[9]), panel, NULL, 0, NULL)


cdef inline void attention_backward_into(
    int64_t worker, int64_t workers, const int64_t *dims, const real *dy, const real *qkv, const real *p, real *dqkv,
    real *ds, real *panel, const Dropout *drop, int64_t row) noexcept nogil:
    """With dropout dV comes first, for `ds` holds a band's weights times their factors until then."""
    cdef int64_t B = dims[0], T = dims[1], C = dims[2], H = dims[3], R = dims[4]
    cdef int64_t D = C // H, wide = 3 * C, task, at, r, end, rows, i
    cdef real scale = <real>(1 / sqrt(<double>D))
    cdef const real *q
    cdef const real *dout
    cdef const real *band
    cdef real *dq
    cdef real *dk
    cdef real *dv
    for task in range(share(B * H, worker, workers, 1), share(B * H, worker + 1, workers, 1)):
        at = task // H * T * wide + task % H * D
        q = qkv + at
        dq = dqkv + at
        dk = dq + C
        dv = dq + 2 * C
        r = 0
        while r < T:
            end = least(r + R, T)
            rows = end - r
            dout = dy + (task // H * T + r) * C + task % H * D
            band = p + (task * T + r) * T
            for i in range(r, end):
                clear(dk + i * wide, D)
                clear(dv + i * wide, D)
            if drop != NULL:
                for i in range(rows):
                    drop_row(drop, row + task * T + r + i, end, band + i * T, ds + i * T)
                gemm(end, D, rows, ds, 1, T, dout, C, 1, dv, wide, dv, wide, panel)
            gemm(rows, end, D, dout, C, 1, q + 2 * C, 1, wide, ds, T, NULL, 0, panel)
            for i in range(rows):
                if drop != NULL:
                    drop_row(drop, row + task * T + r + i, end, ds + i * T, ds + i * T)
                softmax_backward_row(ds + i * T, band + i * T, ds + i * T, end, scale)
            gemm(rows, D, end, ds, T, 1, q + C, wide, 1, dq + r * wide, wide, NULL, 0, panel)
            gemm(end, D, rows, ds, 1, T, q + r * wide, wide, 1, dk, wide, dk, wide, panel)
            if drop == NULL:
                gemm(end, D, rows, band, 1, T, dout, C, 1, dv, wide, dv, wide, panel)
            r += R


cdef void attention_backward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef real *ds = reals(args[11]) + worker * args[5] * args[2]
    cdef real *panel = reals(args[12]) + worker * args[6]
    attention_backward_into(
        worker, workers, args + 1, reals(args[7]), reals(args[8]), reals(args[9]), reals(args[10]), ds, panel, NULL, 0)


# ---- tiled_attention -------------------------------------------------------------------------------------------------


cdef void tiled_attention_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t B = args[1], T = args[2], C = args[3], H = args[4], K = args[5], P = args[6]
    cdef real *scratch = reals(args[11]) + worker * P
    attend(worker, workers, B, T, C, H, K, reals(args[8]), reals(args[9]), reals(args[10]), scratch, NULL, 0)


cdef void tiled_attention_backward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t B = args[1], T = args[2], C = args[3], H = args[4], K = args[5], R = args[7]
    cdef real *scratch = reals(args[13]) + worker * R
    attend_backward(
        worker, workers, B, T, C, H, K, reals(args[8]), reals(args[9]), reals(args[10]), reals(args[11]),
        reals(args[12]), scratch, NULL, 0)


# ---- dropout ---------------------------------------------------------------------------------------------------------


cdef void dropout_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    """dx of dy, too."""
    cdef int64_t N = args[1], C = args[2], S = args[3], n
    cdef Dropout drop = dropout_of(ints(args[7]), number(args + 4), number(args + 5))
    cdef real *x = reals(args[6])
    cdef real *y = reals(args[8])
    for n in range(share(N, worker, workers, 1), share(N, worker + 1, workers, 1)):
        drop_row(&drop, S + n, C, x + n * C, y + n * C)


cdef void attention_dropout_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t T = args[2], H = args[4], R = args[5], P = args[6], S = args[7]
    cdef Dropout drop = dropout_of(ints(args[11]), number(args + 8), number(args + 9))
    cdef real *kept = reals(args[14]) + worker * R * T
    cdef real *panel = reals(args[15]) + worker * P
    attention_forward_into(
        worker, workers, args + 1, reals(args[10]), reals(args[12]), reals(args[13]), panel, &drop, S * H * T, kept)


cdef void attention_dropout_backward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t T = args[2], H = args[4], R = args[5], P = args[6], S = args[7]
    cdef Dropout drop = dropout_of(ints(args[12]), number(args + 8), number(args + 9))
    cdef real *ds = reals(args[15]) + worker * R * T
    cdef real *panel = reals(args[16]) + worker * P
    attention_backward_into(
        worker, workers, args + 1, reals(args[10]), reals(args[11]), reals(args[13]), reals(args[14]), ds, panel, &drop,
        S * H * T)


cdef void tiled_attention_dropout_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t B = args[1], T = args[2], C = args[3], H = args[4], K = args[5], P = args[6], S = args[8]
    cdef Dropout drop = dropout_of(ints(args[12]), number(args + 9), number(args + 10))
    cdef real *scratch = reals(args[15]) + worker * P
    attend(
        worker, workers, B, T, C, H, K, reals(args[11]), reals(args[13]), reals(args[14]), scratch, &drop, S * H * T)


cdef void tiled_attention_dropout_backward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t B = args[1], T = args[2], C = args[3], H = args[4], K = args[5], R = args[7], S = args[8]
    cdef Dropout drop = dropout_of(ints(args[13]), number(args + 9), number(args + 10))
    cdef real *scratch = reals(args[17]) + worker * R
    attend_backward(
        worker, workers, B, T, C, H, K, reals(args[11]), reals(args[12]), reals(args[14]), reals(args[15]),
        reals(args[16]), scratch, &drop, S * H * T)


# ---- gelu ------------------------------------------------------------------------------------------------------------


cdef inline void gelu_rows(
    bint by_tanh, const real *x, int64_t x_row, real *y, int64_t y_row, int64_t rows, int64_t columns) noexcept nogil:
    """y = gelu(x), row by row; a row starts `x_row` and `y_row` elements behind the one before. y may be x."""
    cdef int64_t n, i
    for n in range(rows):
        i = 0
        if by_tanh:
            while i < columns:
                store(y + n * y_row + i, gelu_tanh(load(x + n * x_row + i, columns - i)), columns - i)
                i += LANES
        else:
            while i < columns:
                store(y + n * y_row + i, gelu_erf(load(x + n * x_row + i, columns - i)), columns - i)
                i += LANES


cdef inline void gelu_backward_rows(
    bint by_tanh, const real *dy, int64_t dy_row, const real *x, int64_t x_row, real *dx, int64_t dx_row, int64_t rows,
    int64_t columns) noexcept nogil:
    """dx = dy ∘ gelu'(x), row by row, strides as above. dx may be dy or x."""
    cdef int64_t n, i
    cdef vec g
    for n in range(rows):
        i = 0
        if by_tanh:
            while i < columns:
                g = gelu_tanh_backward(load(dy + n * dy_row + i, columns - i), load(x + n * x_row + i, columns - i))
                store(dx + n * dx_row + i, g, columns - i)
                i += LANES
        else:
            while i < columns:
                g = gelu_erf_backward(load(dy + n * dy_row + i, columns - i), load(x + n * x_row + i, columns - i))
                store(dx + n * dx_row + i, g, columns - i)
                i += LANES


cdef void gelu_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t size = args[1] * args[2]
    cdef int64_t start = share(size, worker, workers, 16), stop = share(size, worker + 1, workers, 16)
    cdef real *x = reals(args[4])
    cdef real *y = reals(args[5])
    gelu_rows(number(args + 3) != 0, x + start, 0, y + start, 0, 1, stop - start)


cdef void gelu_backward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t size = args[1] * args[2]
    cdef int64_t start = share(size, worker, workers, 16), stop = share(size, worker + 1, workers, 16)
    cdef real *dy = reals(args[4])
    cdef real *x = reals(args[5])
    cdef real *dx = reals(args[6])
    gelu_backward_rows(number(args + 3) != 0, dy + start, 0, x + start, 0, dx + start, 0, 1, stop - start)


# ---- residual --------------------------------------------------------------------------------------------------------


cdef void residual_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t size = args[1] * args[2]
    cdef int64_t i = share(size, worker, workers, 16), stop = share(size, worker + 1, workers, 16)
    cdef real *x = reals(args[3])
    cdef real *f = reals(args[4])
    cdef real *y = reals(args[5])
    while i < stop:
        store(y + i, load(x + i, stop - i) + load(f + i, stop - i), stop - i)
        i += LANES


# ---- pack, unpack ----------------------------------------------------------------------------------------------------


cdef void pack_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t size = args[1] * args[2]
    cdef int64_t start = share(size, worker, workers, 32), stop = share(size, worker + 1, workers, 32)
    pack_row(reals(args[3]) + start, <uint16_t *><intptr_t>args[4] + start, stop - start)


cdef void unpack_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t size = args[1] * args[2]
    cdef int64_t start = share(size, worker, workers, 32), stop = share(size, worker + 1, workers, 32)
    unpack_row(<uint16_t *><intptr_t>args[3] + start, reals(args[4]) + start, stop - start)


# ---- linear_cross_entropy --------------------------------------------------------------------------------------------


cdef inline void head_logits(
    int64_t worker, int64_t workers, int64_t N, int64_t C, int64_t V, const real *x, const real *weight, real *z,
    real *panel
) noexcept nogil:
    """zᵀ (V, N) = weight·xᵀ: so that weight, which comes from far, is read where it lies, and x is what is packed."""
    shared_gemm(worker, workers, V, N, C, weight, C, 1, x, 1, C, z, N, NULL, 0, panel)


cdef void linear_cross_entropy_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t phase = args[0], N = args[1], C = args[2], V = args[3], P = args[4]
    cdef real *z = reals(args[9])
    if phase == 0:
        head_logits(worker, workers, N, C, V, reals(args[5]), reals(args[7]), z, reals(args[10]) + worker * P)
    else:
        cross_entropy(worker, workers, V, N, z, ints(args[6]), reals(args[8]), NULL)


cdef void linear_cross_entropy_backward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t phase = args[0], N = args[1], C = args[2], V = args[3], P = args[4]
    cdef real *x = reals(args[6])
    cdef real *weight = reals(args[8])
    cdef real *dx = reals(args[9])
    cdef real *dweight = reals(args[10])
    cdef real *z = reals(args[11])
    cdef real *panel = reals(args[12]) + worker * P
    if phase == 0:
        head_logits(worker, workers, N, C, V, x, weight, z, panel)
    elif phase == 1:
        cross_entropy(worker, workers, V, N, z, ints(args[7]), reals(args[13]), reals(args[5]))
    else:
        shared_gemm(worker, workers, N, C, V, z, 1, N, weight, C, 1, dx, C, NULL, 0, panel)
        shared_gemm(worker, workers, V, C, N, z, N, 1, x, C, 1, dweight, C, dweight, C, panel)


# ---- adamw -----------------------------------------------------------------------------------------------------------


cdef inline void adamw_step(
    const double *hyper, real scale, real decay, real *p, real *g, real *m, real *v, int64_t size
) noexcept nogil:
    cdef int64_t i = 0
    cdef vec lr = splat(<real>hyper[0]), beta1 = splat(<real>hyper[1]), beta2 = splat(<real>hyper[2])
    cdef vec inverse1 = splat(<real>(1 / hyper[5])), inverse2 = splat(<real>(1 / hyper[6]))
    cdef vec gradient, one_minus_beta1 = splat(1) - beta1, one_minus_beta2 = splat(1) - beta2, a, b, old
    while i < size:
        gradient = load(g + i, size - i) * splat(scale)
        a = beta1 * load(m + i, size - i) + one_minus_beta1 * gradient
        b = beta2 * load(v + i, size - i) + one_minus_beta2 * (gradient * gradient)
        old = load(p + i, size - i)
        old = old - lr * splat(decay) * old
        store(m + i, a, size - i)
        store(v + i, b, size - i)
        store(p + i, old - lr * (a * inverse1) / (vector_sqrt(b * inverse2) + splat(<real>hyper[3])), size - i)
        store(g + i, splat(0), size - i)
        i += LANES


cdef void adamw_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef int64_t phase = args[0], Z = args[1], K = args[2], Q = args[3], q, start, middle, stop
    cdef double *hyper = doubles(args[4])
    cdef real *p = reals(args[5])
    cdef real *g = reals(args[6])
    cdef real *m = reals(args[7])
    cdef real *v = reals(args[8])
    cdef double *partials = doubles(args[9])
    cdef double total = 0, scale = 1
    if phase == 0:
        for q in range(share(Q, worker, workers, 1), share(Q, worker + 1, workers, 1)):
            partials[q] = square_sum(g + q * ADAMW_PART, least(ADAMW_PART, Z - q * ADAMW_PART))
        return
    for q in range(Q):
        total += partials[q]
    total = sqrt(total)
    if worker == 0:
        doubles(args[10])[0] = total
    if not isfinite(total):
        return
    if hyper[7] > 0 and hyper[7] / (total + 1e-6) < 1:
        scale = hyper[7] / (total + 1e-6)
    start = share(Z, worker, workers, 16)
    stop = share(Z, worker + 1, workers, 16)
    if scale < SMALLEST_SCALE:
        scale /= SMALLEST_SCALE
        multiply(g + start, splat(<real>SMALLEST_SCALE), stop - start)
    middle = least(K if K > start else start, stop)
    adamw_step(hyper, <real>scale, <real>hyper[4], p + start, g + start, m + start, v + start, middle - start)
    adamw_step(hyper, <real>scale, 0, p + middle, g + middle, m + middle, v + middle, stop - middle)


# ---- one product, for measuring --------------------------------------------------------------------------------------


cdef void product(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    """The twin of fastbp/simd/product.py."""
    cdef int64_t P = args[4]
    shared_gemm(
        worker, workers, args[1], args[2], args[3], reals(args[5]), args[6], args[7], reals(args[8]), args[9], args[10],
        reals(args[11]), args[12], reals(args[13]), args[14], reals(args[15]) + worker * P)


# ---- two calls at once (fastbp/run/peephole.py): the first call's row, then the second's --------------------------------

cdef enum:
    LINEAR_FORWARD_ROW = 10
    LAYERNORM_BACKWARD_ROW = 12


cdef void then_gelu_tanh(const Also *also, const real *c, int64_t c_row, int64_t rows, int64_t columns) noexcept nogil:
    gelu_rows(True, c, c_row, also.out, also.out_row, rows, columns)


cdef void then_gelu_erf(const Also *also, const real *c, int64_t c_row, int64_t rows, int64_t columns) noexcept nogil:
    gelu_rows(False, c, c_row, also.out, also.out_row, rows, columns)


cdef void linear_forward_gelu_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef const int64_t *gelu = args + LINEAR_FORWARD_ROW
    cdef Also also
    also.run = then_gelu_tanh if number(gelu + 3) != 0 else then_gelu_erf
    also.before, also.before_row = NULL, 0
    also.out, also.out_row, also.sums = reals(gelu[5]), gelu[2], NULL
    linear_forward_also(args, worker, workers, &also)


cdef void then_add(const Also *also, const real *c, int64_t c_row, int64_t rows, int64_t columns) noexcept nogil:
    """out = before + c."""
    cdef const real *x
    cdef const real *f
    cdef real *y
    cdef int64_t n, i
    for n in range(rows):
        x, f, y = also.before + n * also.before_row, c + n * c_row, also.out + n * also.out_row
        i = 0
        while i < columns:
            store(y + i, load(x + i, columns - i) + load(f + i, columns - i), columns - i)
            i += LANES


cdef void linear_forward_residual_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    cdef const int64_t *residual = args + LINEAR_FORWARD_ROW
    cdef Also also
    also.run = then_add
    also.before, also.before_row = reals(residual[3]), args[3]
    also.out, also.out_row, also.sums = reals(residual[5]), args[3], NULL
    linear_forward_also(args, worker, workers, &also)


cdef void layernorm_backward_residual_forward(const int64_t *args, int64_t worker, int64_t workers) noexcept nogil:
    layernorm_backward_into(args, worker, workers, reals(args[LAYERNORM_BACKWARD_ROW + 5]))


# ---- what Python asks for --------------------------------------------------------------------------------------------

_ADDRESSES = {
    "embedding_forward": <intptr_t>&embedding_forward,
    "embedding_backward": <intptr_t>&embedding_backward,
    "layernorm_forward": <intptr_t>&layernorm_forward,
    "layernorm_backward": <intptr_t>&layernorm_backward,
    "linear_forward": <intptr_t>&linear_forward,
    "linear_backward": <intptr_t>&linear_backward,
    "qkv_forward": <intptr_t>&qkv_forward,
    "qkv_backward": <intptr_t>&qkv_backward,
    "softmax_forward": <intptr_t>&softmax_forward,
    "softmax_backward": <intptr_t>&softmax_backward,
    "attention_forward": <intptr_t>&attention_forward,
    "attention_backward": <intptr_t>&attention_backward,
    "tiled_attention_forward": <intptr_t>&tiled_attention_forward,
    "tiled_attention_backward": <intptr_t>&tiled_attention_backward,
    "attention_dropout_forward": <intptr_t>&attention_dropout_forward,
    "attention_dropout_backward": <intptr_t>&attention_dropout_backward,
    "tiled_attention_dropout_forward": <intptr_t>&tiled_attention_dropout_forward,
    "tiled_attention_dropout_backward": <intptr_t>&tiled_attention_dropout_backward,
    "dropout_forward": <intptr_t>&dropout_forward,
    "dropout_backward": <intptr_t>&dropout_forward,
    "gelu_forward": <intptr_t>&gelu_forward,
    "gelu_backward": <intptr_t>&gelu_backward,
    "residual_forward": <intptr_t>&residual_forward,
    "linear_cross_entropy_forward": <intptr_t>&linear_cross_entropy_forward,
    "linear_cross_entropy_backward": <intptr_t>&linear_cross_entropy_backward,
    "adamw_forward": <intptr_t>&adamw_forward,
    "pack_forward": <intptr_t>&pack_forward,
    "unpack_forward": <intptr_t>&unpack_forward,
    "product": <intptr_t>&product,
}

_FUSED_ADDRESSES = {
    "linear_forward_gelu_forward": <intptr_t>&linear_forward_gelu_forward,
    "linear_forward_residual_forward": <intptr_t>&linear_forward_residual_forward,
    "layernorm_backward_residual_forward": <intptr_t>&layernorm_backward_residual_forward,
}


def fused_address(name):
    """The address of a kernel that does two calls at once, 0 where there is none of that name."""
    return _FUSED_ADDRESSES.get(name, 0)


def address(name):
    """The address of a kernel by its name: "product", "<op>_forward" or "<op>_backward"; KeyError where there is none."""
    return _ADDRESSES[name]


def build():
    """What this unit was compiled for: bytes of a vector and of a real, rows and vectors of the register tile."""
    return {
        "vector_bytes": VECTOR_BYTES,
        "real_bytes": REAL_BYTES,
        "tile_rows": TILE_ROWS,
        "tile_vectors": TILE_VECTORS,
    }


def set_blocking(depth, rows, panels):
    """What a block of a product holds, in every later run; ValueError for more than its scratch was sized for."""
    if not (0 < depth <= DEPTH and 0 < rows <= ROWS and 0 < panels <= PANELS):
        raise ValueError(f"blocks of {depth} terms, {rows} rows, {panels} panels: at most {DEPTH}, {ROWS}, {PANELS}")
    blocking.depth, blocking.rows, blocking.panels = depth, rows, panels


def cpu_features():
    """The features that the instruction-set units need, as CPUID and XGETBV (the operating system's part) show them."""
    return {
        "avx2": has_avx2(),
        "fma": has_fma(),
        "avx512f": has_avx512f(),
        "avx512vl": has_avx512vl(),
        "avx512dq": has_avx512dq(),
        "avx512bw": has_avx512bw(),
    }
