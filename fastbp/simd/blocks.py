"""The product block by block, so that what is read again and again stays in the second-level cache.

A few panels of B's columns, `DEPTH` terms deep, meet `ROWS` rows of A. A panel is copied to a worker's scratch: where
B's rows are contiguous, by the first tile that runs against it, on its way; where B lies transposed, before. A whose
columns lie far apart is copied by the first panel's tiles. Later terms start from what C holds, so an element of C is
one chain of fused multiply-adds in the order of k whatever the blocking: the same bits for every split of the work.

Addresses are integers, strides bytes. The twin of fastbp/_gemm.h.
"""

from __future__ import annotations

import numba

from fastbp.simd.abi import itemsize, span
from fastbp.simd.block_sizes import block_depth, block_rows
from fastbp.simd.linking import linked
from fastbp.simd.microkernel import AHEAD, FETCH_A, LINE, PACK_A, PACK_B, tile
from fastbp.simd.packing import pack_columns, pack_rows
from fastbp.simd.scratch import ROWS
from fastbp.simd.target import TARGET

FAR_BYTES = 2048
"""Columns of A further apart than this are out of reach of the hardware's prefetching."""
CACHED_BYTES = 1 << 17
"""An output larger than this is fetched ahead of its tile."""

tallest, tile4, tile2, _ = TARGET.tile_rows
widest, vector_bytes = TARGET.tile_vectors, TARGET.vector_bytes


@numba.njit(nogil=True)
def ceiling(size, unit):
    return (size + unit - 1) // unit


@numba.njit(nogil=True)
def cut(size, index, parts):
    """Where part `index` of `parts` begins in `size`."""
    return size * index // parts


def panel_entry(
    args, vectors, rows, depth, first, copies, a, a_row, a_col, b, b_row, pack_b, sums, soon, soon_end,
    c, c_row, init, init_row, fetch_c,
):  # fmt: skip
    # Copied tiles are set apart by a line more than they need: else all would fall into the same sets of the cache.
    size = itemsize(args)
    column = tallest * size
    copied = depth * column + LINE
    whole, m = rows // tallest * tallest, 0
    while m < rows:
        form, at, row, col, step, ahead, pack_a = 0, a + m * a_row, a_row, a_col, tallest * a_row, LINE, 0
        if m < whole:
            height, count = tallest, 1 if pack_b else (whole - m) // tallest
            copy = copies + m // tallest * copied
            if copies and first:
                pack_a, form = copy, PACK_A
            elif copies:
                at, row, col, step, ahead = copy, size, column, copied, LINE // size * column
            elif a_row == size:
                form, ahead = FETCH_A, LINE if first else AHEAD * a_col
            elif first:
                ahead = step
            if pack_b:
                form |= PACK_B
        else:
            height, count = tile4 if rows - m >= tile4 else tile2 if rows - m >= tile2 else 1, 1
        tile(
            args, height, vectors, form, depth, count,
            at, row, col, step, ahead, b, b_row, c, c_row, init, init_row,
            pack_a, pack_b, sums, soon, soon_end, fetch_c,
        )  # fmt: skip
        if pack_b:
            b, pack_b = pack_b, 0
        m += count * height
        c += count * height * c_row
        init += count * height * init_row


@linked(panel_entry)
def run_panel(
    args, vectors, rows, depth, first, copies, a, a_row, a_col, b, b_row, pack_b, sums, soon, soon_end,
    c, c_row, init, init_row, fetch_c,
):  # fmt: skip
    """All tiles of A's rows against one panel.

    `pack_b` is 0, or where the first tile copies the panel that it reads at `b`. `copies` is where A is copied to by
    the first panel and read from by the others; 0 where it is read where it lies. The last rows always are. To the
    first panel A comes from far, so a whole tile's time before it is read: what the tile below needs, or where A lies
    by columns, the next line of each. `sums`, `soon` and `soon_end` as in a tile.
    """


@numba.njit(nogil=True)
def run_ragged_panel(args, vectors, columns, rows, depth, scratch, a, a_row, a_col, panel, c, c_row, init, init_row):
    """A packed panel whose columns do not fill its vectors: tile by tile through `scratch`, one tile large."""
    width, width_bytes = vectors * (vector_bytes // itemsize(args)), vectors * vector_bytes
    inside = span(args, scratch, 0, tallest * width)
    for m in range(0, rows, tallest):
        height = min(tallest, rows - m)
        if init:
            for i in range(height):
                first = span(args, init + (m + i) * init_row, 0, columns)
                for j in range(columns):
                    inside[i * width + j] = first[j]
        start, start_row = (scratch, width_bytes) if init else (0, 0)
        run_panel(
            args, vectors, height, depth, 0, 0, a + m * a_row, a_row, a_col, panel, 0, 0, 0, 0, 0,
            scratch, width_bytes, start, start_row, 0,
        )  # fmt: skip
        for i in range(height):
            out = span(args, c + (m + i) * c_row, 0, columns)
            for j in range(columns):
                out[j] = inside[i * width + j]


@numba.njit(nogil=True)
def block_product(args, M, N, K, a, a_row, a_col, b, b_row, b_col, c, c_row, init, init_row, scratch, sums):
    """The product for columns that one block of panels holds. A block of C's rows is done when the last depth has
    been: what else is to be done with it while it is in the cache belongs at that place."""
    size = itemsize(args)
    length = vector_bytes // size
    deepest = block_depth(args)
    vectors, depths = ceiling(N, length), ceiling(K, deepest)
    panels, tiles = ceiling(vectors, widest), ceiling(M, tallest)
    blocks = ceiling(M, block_rows(args)) if M > ROWS else 1  # as the scratch was sized
    kept = vectors if blocks > 1 else min(vectors, widest)  # else a panel is not met again
    ragged = scratch + kept * vector_bytes * min(K, deepest)
    far = a_row == size and a_col > FAR_BYTES and panels > 1
    copies = ragged + tallest * widest * vector_bytes if far else 0
    fetch_c = 1 if M * c_row > CACHED_BYTES else 0
    for q in range(depths):
        k = cut(K, q, depths)
        depth = cut(K, q + 1, depths) - k
        begin, begin_row = (c, c_row) if k else (init, init_row)
        for s in range(blocks):
            m = cut(tiles, s, blocks) * tallest
            rows = min(M, cut(tiles, s + 1, blocks) * tallest) - m
            for p in range(panels):
                v = cut(vectors, p, panels)
                count = cut(vectors, p + 1, panels) - v
                j, width = v * length, count * length
                columns = min(N - j, width)
                from_b, pack_b, soon_end = b + k * b_row + j * b_col, 0, 0
                soon = from_b + width * size
                to_sums = sums + j * size if sums else 0
                panel = scratch + j * depth * size if blocks > 1 else scratch
                if s == 0 and b_col != size:
                    pack_columns(args, depth, columns, width, from_b, b_col, panel)
                elif s == 0 and (columns < width or rows < tallest):
                    pack_rows(args, depth, columns, width, from_b, b_row, panel, to_sums)
                elif s == 0:
                    pack_b = panel
                    soon_end = soon + depth * b_row if p + 1 < panels else 0
                at_a, at_c = a + k * a_col + m * a_row, c + m * c_row + j * size
                start = begin + m * begin_row + j * size if begin else 0
                if columns == width:
                    run_panel(
                        args, count, rows, depth, 1 if p == 0 else 0, copies, at_a, a_row, a_col,
                        from_b if pack_b else panel, b_row, pack_b, to_sums, soon, soon_end,
                        at_c, c_row, start, begin_row, fetch_c,
                    )  # fmt: skip
                else:
                    run_ragged_panel(
                        args, count, columns, rows, depth, ragged, at_a, a_row, a_col, panel,
                        at_c, c_row, start, begin_row,
                    )  # fmt: skip
