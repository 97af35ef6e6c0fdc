"""C = init + A·B for any strides of A and either orientation of B, out of packed panels and micro-kernels.

`DEPTH` terms at a time, one panel of B's columns (as many vectors as the register tile holds) is copied into a worker's
scratch, transposed on the way where B lies transposed, zero-padded where its columns do not fill a vector. Then every
tile of A's rows runs against it. Later terms start from what C holds, so an element of C is one chain of fused
multiply-adds in the order of k whatever the blocking: the same bits for every split of the work.

It takes seconds to compile, so it is compiled once for each dtype and the kernels call it as a C function by name:
`register_gemm` must have run before a kernel that uses it is compiled or loaded from the cache.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import cfunc, types
from numba.extending import overload

from fastbp.simd.abi import distinct, itemsize, span
from fastbp.simd.microkernel import copy_rows, microkernel, transpose_square
from fastbp.simd.target import DEPTH, TARGET, vector_length

vector_bytes = TARGET.vector_bytes
tile_height = TARGET.tile_rows[0]


def _panel_product(vectors: int, size: int) -> Any:
    """All tiles of A's rows against one packed panel."""
    r0, r1, r2, _ = TARGET.tile_rows
    tile0, tile1, tile2, tile3 = (microkernel(rows, vectors, size) for rows in TARGET.tile_rows)

    @numba.njit(nogil=True)
    @distinct(TARGET.name, vectors, size)
    def product(rows, depth, a, a_row, a_col, panel, c, c_row, init, init_row):
        m = 0
        while rows - m >= r0:
            tile0(depth, a + m * a_row, a_row, a_col, panel, c + m * c_row, c_row, init, init_row)
            init += r0 * init_row
            m += r0
        if rows - m >= r1:
            tile1(depth, a + m * a_row, a_row, a_col, panel, c + m * c_row, c_row, init, init_row)
            init += r1 * init_row
            m += r1
        if rows - m >= r2:
            tile2(depth, a + m * a_row, a_row, a_col, panel, c + m * c_row, c_row, init, init_row)
            init += r2 * init_row
            m += r2
        if rows > m:
            tile3(depth, a + m * a_row, a_row, a_col, panel, c + m * c_row, c_row, init, init_row)

    return product


def _packer(size: int) -> Any:
    """Copies a panel of B, transposed where its rows lie along k, and pads it with zeros."""
    length = vector_length(size)
    copy1, copy2, copy3 = (copy_rows(vectors, size) for vectors in (1, 2, 3))
    transpose = transpose_square(size)

    @numba.njit(nogil=True)
    @distinct(TARGET.name, size)
    def plain(args, depth, columns, vectors, b, b_row, panel):
        if columns == vectors * length:
            if vectors == 1:
                copy1(depth, b, b_row * size, panel)
            elif vectors == 2:
                copy2(depth, b, b_row * size, panel)
            else:
                copy3(depth, b, b_row * size, panel)
            return
        width = vectors * length
        for k in range(depth):
            source = span(args, b, k * b_row, columns)
            target = span(args, panel, k * width, width)
            for j in range(columns):
                target[j] = source[j]
            for j in range(columns, width):
                target[j] = 0

    @numba.njit(nogil=True)
    @distinct(TARGET.name, size)
    def transposed(args, depth, columns, vectors, b, b_col, panel):
        width = vectors * length
        whole = depth // length * length
        for j0 in range(0, width, length):
            if j0 + length <= columns:
                for k in range(0, whole, length):
                    source = b + (j0 * b_col + k) * size
                    transpose(source, b_col * size, panel + (k * width + j0) * size, width * size)
                start = whole
            else:
                start = 0
            for j in range(j0, j0 + length):
                target = span(args, panel, j, depth * width - j)
                if j < columns:
                    source_row = span(args, b, j * b_col, depth)
                    for k in range(start, depth):
                        target[k * width] = source_row[k]
                else:
                    for k in range(start, depth):
                        target[k * width] = 0

    return plain, transposed


@cache
def gemm_for(size: int) -> Any:
    """The product for elements of `size` bytes."""
    length = vector_length(size)
    widest = TARGET.tile_vectors
    product1, product2, product3 = (_panel_product(vectors, size) for vectors in (1, 2, 3))
    plain, transposed = _packer(size)

    @numba.njit(nogil=True)
    @distinct(TARGET.name, size)
    def run(vectors, rows, depth, a, a_row, a_col, panel, c, c_row, init, init_row):
        if vectors == 1:
            product1(rows, depth, a, a_row, a_col, panel, c, c_row, init, init_row)
        elif vectors == 2:
            product2(rows, depth, a, a_row, a_col, panel, c, c_row, init, init_row)
        else:
            product3(rows, depth, a, a_row, a_col, panel, c, c_row, init, init_row)

    @numba.njit(nogil=True)
    @distinct(TARGET.name, size)
    def ragged(args, vectors, columns, rows, depth, a, a_row, a_col, panel, c, c_row, init, init_row):
        """A panel whose columns do not fill its vectors: tile by tile through a tile of scratch behind the panel."""
        width = vectors * length
        tile = panel + depth * width * size
        for m in range(0, rows, 8):
            height = min(8, rows - m)
            scratch = span(args, tile, 0, height * width)
            if init != 0:
                for i in range(height):
                    first = span(args, init, (m + i) * init_row, columns)
                    for j in range(columns):
                        scratch[i * width + j] = first[j]
            start, start_row = (tile, width * size) if init != 0 else (0, 0)
            run(vectors, height, depth, a + m * a_row, a_row, a_col, panel, tile, width * size, start, start_row)
            for i in range(height):
                out = span(args, c, (m + i) * c_row, columns)
                for j in range(columns):
                    out[j] = scratch[i * width + j]

    @numba.njit(nogil=True)
    @distinct(TARGET.name, size)
    def gemm(args, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, panel):
        if M <= 0 or N <= 0:
            return
        vectors = (N + length - 1) // length
        panels = (vectors + widest - 1) // widest
        for k in range(0, K, DEPTH):
            depth = min(DEPTH, K - k)
            begin = c if k else init
            begin_row = c_row if k else (init_row if init else 0)
            at_a = a + k * a_col * size
            for p in range(panels):
                v0 = vectors * p // panels
                count = vectors * (p + 1) // panels - v0
                j = v0 * length
                columns = min(N - j, count * length)
                at_b = b + (k * b_row + j * b_col) * size
                if b_col == 1:
                    plain(args, depth, columns, count, at_b, b_row, panel)
                else:
                    transposed(args, depth, columns, count, at_b, b_col, panel)
                at_c = c + j * size
                at_init = begin + j * size if begin else 0
                if columns == count * length:
                    run(
                        count, M, depth, at_a, a_row * size, a_col * size, panel,
                        at_c, c_row * size, at_init, begin_row * size,
                    )  # fmt: skip
                else:
                    ragged(
                        args, count, columns, M, depth, at_a, a_row * size, a_col * size, panel,
                        at_c, c_row, at_init, begin_row,
                    )  # fmt: skip

    return gemm


_ARGUMENTS = 14
_registered: dict[str, Any] = {}


def _symbol(dtype: str) -> str:
    return f"fastbp_gemm_{dtype}"


def _signature(dtype: str) -> Any:
    return types.void(types.CPointer(getattr(types, dtype)), *([types.int64] * _ARGUMENTS))


def _gemm_entry(args, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, panel):
    _product(args, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, panel)


def _product(args, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, panel):
    raise TypeError("compiled code only")


@overload(_product, jit_options={"nogil": True})
def _choose(args, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, panel):
    product = gemm_for(4 if args.dtype == types.float32 else 8)

    def call(args, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, panel):
        product(args, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, panel)

    return call


def register_gemm(dtype: str, cache: bool = True) -> None:
    """Compiles the product for a dtype, or loads it from the cache, and makes it known to the linker by name."""
    if dtype not in _registered:
        _registered[dtype] = cfunc(_signature(dtype), cache=cache)(_gemm_entry)
        llvm.add_symbol(_symbol(dtype), _registered[dtype].address)


def gemm(args, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, panel):
    """C (M, N) = init + A (M, K) · B (K, N), for use inside kernels; addresses are integers, strides count elements.

    `args` tells the dtype. One of B's strides must be 1. `init` is 0 (start from zero) or the address of the first
    values, `init_row` their row stride: C itself to accumulate, a bias with stride 0. `panel` is the worker's scratch
    of `panel_elements(K, N)` elements.
    """
    raise TypeError("gemm is called from compiled kernels only")


@overload(gemm, jit_options={"nogil": True})
def _gemm(args, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, panel):
    dtype = args.dtype.name
    external = types.ExternalFunction(_symbol(dtype), _signature(dtype))

    def call(args, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, panel):
        external(args, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, panel)

    return call


@numba.njit(nogil=True)
def share(size, worker, workers, unit):
    """The half-open part of `size` that belongs to a worker, cut at multiples of `unit`."""
    units = (size + unit - 1) // unit
    return min(size, units * worker // workers * unit), min(size, units * (worker + 1) // workers * unit)


@numba.njit(nogil=True)
def shared_gemm(args, worker, workers, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, panel):
    """A worker's share of `gemm`: columns where there are enough for everyone, else rows."""
    size = itemsize(args)
    unit = vector_bytes // size
    if 2 * unit * workers <= N:
        j0, j1 = share(N, worker, workers, unit)
        at = init + j0 * size if init else 0
        gemm(
            args, M, j1 - j0, K, a, a_row, a_col, b + j0 * b_col * size, b_row, b_col,
            c + j0 * size, c_row, at, init_row, panel,
        )  # fmt: skip
    else:
        m0, m1 = share(M, worker, workers, tile_height)
        at = init + m0 * init_row * size if init else 0
        gemm(
            args, m1 - m0, N, K, a + m0 * a_row * size, a_row, a_col, b, b_row, b_col,
            c + m0 * c_row * size, c_row, at, init_row, panel,
        )  # fmt: skip
