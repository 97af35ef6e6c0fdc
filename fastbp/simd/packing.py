"""Panels of the product's B: columns of it side by side, as many vectors as a tile is wide, zero-padded at the end.

Addresses and strides are bytes.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fastbp.simd.abi import add, itemsize, span
from fastbp.simd.emit import BYTES, I32, load, number, store, vector_type
from fastbp.simd.target import TARGET, vector_length

vector_bytes = TARGET.vector_bytes


@intrinsic
def copy_vector(typing, args, source, target):
    """Copies one vector."""
    size = args.dtype.bitwidth // 8

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        source, target = (builder.inttoptr(value, BYTES) for value in values[1:])
        store(builder, load(builder, source, vector_type(size), size), target, size)
        return context.get_dummy_value()

    return types.void(args, types.int64, types.int64), codegen


@intrinsic
def transpose_square(typing, args, source, source_row, target, target_row):
    """Transposes VL × VL elements: log2(VL) rounds of exchanging halves between rows at distance VL/2, VL/4, … 1."""
    size = args.dtype.bitwidth // 8
    length, vector = vector_length(size), vector_type(size)
    lanes = ir.VectorType(I32, length)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        def at(base: Any, stride: Any, i: int) -> Any:
            return builder.inttoptr(builder.add(base, builder.mul(stride, number(i))), BYTES)

        source, source_row, target, target_row = values[1:]
        rows = [load(builder, at(source, source_row, i), vector, size) for i in range(length)]
        distance = length // 2
        while distance:
            low = [j if not j & distance else length + j - distance for j in range(length)]
            high = [j + distance if not j & distance else length + j for j in range(length)]
            for i in range(length):
                if not i & distance:
                    a, b = rows[i], rows[i + distance]
                    rows[i] = builder.shuffle_vector(a, b, ir.Constant(lanes, low))
                    rows[i + distance] = builder.shuffle_vector(a, b, ir.Constant(lanes, high))
            distance //= 2
        for i, row in enumerate(rows):
            store(builder, row, at(target, target_row, i), size)
        return context.get_dummy_value()

    return types.void(args, *([types.int64] * 4)), codegen


@numba.njit(nogil=True)
def pack_rows(args, depth, columns, width, b, b_row, panel, sums):
    """Copies a panel of B whose rows are contiguous, `width` columns of which `columns` are B's; where `sums` is not 0,
    what lies there, one a column, grows by the rows."""
    size = itemsize(args)
    length = vector_bytes // size
    for k in range(depth):
        for j in range(0, width, length):
            if j + length <= columns:
                copy_vector(args, b + k * b_row + j * size, panel + (k * width + j) * size)
            else:
                source = span(args, b + k * b_row, 0, columns)
                target = span(args, panel, k * width, width)
                for i in range(j, columns):
                    target[i] = source[i]
                for i in range(columns, width):
                    target[i] = 0
        if sums:
            add(span(args, panel, k * width, columns), span(args, sums, 0, columns), columns)


@numba.njit(nogil=True)
def pack_columns(args, depth, columns, width, b, b_col, panel):
    """Copies a panel of B whose columns are contiguous."""
    size = itemsize(args)
    length = vector_bytes // size
    whole = depth // length * length
    for j0 in range(0, width, length):
        start = 0
        if j0 + length <= columns:
            for k in range(0, whole, length):
                transpose_square(args, b + j0 * b_col + k * size, b_col, panel + (k * width + j0) * size, width * size)
            start = whole
        for j in range(j0, j0 + length):
            target = span(args, panel, j, depth * width - j)
            if j < columns:
                source_row = span(args, b + j * b_col, 0, depth)
                for k in range(start, depth):
                    target[k * width] = source_row[k]
            else:
                for k in range(start, depth):
                    target[k * width] = 0
