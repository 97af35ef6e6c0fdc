"""C = init + A·B for any strides of A and either orientation of B, as kernels call it: whole or a worker's share."""

from __future__ import annotations

import numba

from fastbp.simd.abi import itemsize
from fastbp.simd.block_sizes import block_panels, register_block_sizes
from fastbp.simd.blocks import block_product, ceiling, cut, panel_entry
from fastbp.simd.linking import linked, register
from fastbp.simd.target import TARGET

vector_bytes = TARGET.vector_bytes
tile_height, tile_vectors = TARGET.tile_rows[0], TARGET.tile_vectors
FEW_ROWS = 192
"""Rows of a worker that pay for copying all of B."""
FEWEST_ROWS, SMALL_BYTES = 32, 1 << 19
"""The same where B is small and stays in the second-level cache."""


def gemm_entry(args, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, scratch, sums):
    size = itemsize(args)
    vectors = ceiling(N, vector_bytes // size)
    blocks = ceiling(vectors, block_panels(args) * tile_vectors)
    for s in range(blocks if M > 0 and N > 0 else 0):
        j = cut(vectors, s, blocks) * (vector_bytes // size)
        columns = min(N, cut(vectors, s + 1, blocks) * (vector_bytes // size)) - j
        block_product(
            args, M, columns, K, a, a_row * size, a_col * size, b + j * b_col * size, b_row * size, b_col * size,
            c + j * size, c_row * size, init + j * size if init else 0, init_row * size if init else 0, scratch,
            sums + j * size if sums else 0,
        )  # fmt: skip


@linked(gemm_entry)
def gemm(args, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, scratch, sums):
    """C (M, N) = init + A (M, K) · B (K, N), for use inside kernels; addresses are integers, strides count elements.

    One of B's strides must be 1. `init` is 0 (start from zero) or the address of the first values, `init_row` their row
    stride: C itself to accumulate, a bias with stride 0. `scratch` is the worker's, of `panel_elements(K, N, M, …)`
    elements. `sums` is 0, or where as many as C has columns grow by B's rows, whose columns must be contiguous.
    """


def register_gemm(dtype: str, cache: bool = True) -> None:
    """Compiles the product for a dtype, or loads it from the cache. Kernels that use it are linked to it by name."""
    register_block_sizes(dtype)
    register(panel_entry, dtype, cache)
    register(gemm_entry, dtype, cache)


@numba.njit(nogil=True)
def share(size, worker, workers, unit):
    """The half-open part of `size` that belongs to a worker, cut at multiples of `unit`."""
    units = (size + unit - 1) // unit
    return min(size, units * worker // workers * unit), min(size, units * (worker + 1) // workers * unit)


@numba.njit(nogil=True)
def shared_gemm(
    args, worker, workers, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, panel, sums
):
    """A worker's share of `gemm`. Rows, so that a worker makes and reads the same rows from op to op and finds them in
    its own cache; columns where there are too few rows to pay for copying all of B, and where A is dearer to copy.
    Whoever has the first rows sums B's."""
    size = itemsize(args)
    unit = vector_bytes // size
    m0, m1, j0, j1 = 0, M, 0, N
    few = FEW_ROWS if K * N * size > SMALL_BYTES else FEWEST_ROWS
    wide = 2 * unit * workers <= N
    if wide and (workers * few > M or (a_col != 1 and N > M)):
        j0, j1 = share(N, worker, workers, unit)
    else:
        m0, m1 = share(M, worker, workers, tile_height)
    at = init + (m0 * init_row + j0) * size if init else 0
    gemm(
        args, m1 - m0, j1 - j0, K, a + m0 * a_row * size, a_row, a_col, b + j0 * b_col * size, b_row, b_col,
        c + (m0 * c_row + j0) * size, c_row, at, init_row, panel, sums + j0 * size if sums and m0 == 0 else 0,
    )  # fmt: skip
