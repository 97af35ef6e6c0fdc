"""How kernels read their arguments, and what their fast-math leaves alone."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from numba import cfunc

from fastbp.run.program import Instructions
from fastbp.simd.abi import (
    FLAGS,
    KERNEL,
    add,
    cast,
    copy,
    dim,
    double_span,
    inline,
    int_span,
    itemsize,
    number,
    span,
)

over_dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


def _kernel(args, worker, workers):  # type: ignore[no-untyped-def]
    size = dim(args, 0)
    out, ints, doubles = dim(args, 2), dim(args, 4), dim(args, 5)
    y, x = span(args, out, 1, size), span(args, dim(args, 3), 1, size)
    copy(x, y, size)
    add(x, y, size)
    span(args, out, 0, 1)[0] = number(args, 1)
    tail = span(args, out, size + 1, 4)
    tail[0], tail[1] = itemsize(args), cast(args, 7)
    tail[2], tail[3] = worker, workers
    int_span(args, ints, 1, 2)[1] = int_span(args, ints, 0, 1)[0] + 1
    double_span(args, doubles, 1, 1)[0] = double_span(args, doubles, 0, 1)[0] / 3


@over_dtypes
def test_a_kernel_reads_what_a_row_holds(dtype: str) -> None:
    x, out = np.arange(6, dtype=dtype), np.zeros(10, dtype)
    ints, doubles = np.array([41, 0, 0, 9], np.int32), np.array([1.0, 0, 0])
    bits = struct.unpack("<q", struct.pack("<d", 0.1))[0]
    row = [5, bits, *(array.ctypes.data for array in (out, x, ints, doubles))]
    kernel = cfunc(KERNEL[dtype])(_kernel)
    Instructions(np.array([kernel.address], np.int64), np.array([row], np.int64)).run_alone(0, 1, 1)
    assert out.tolist() == [np.dtype(dtype).type(0.1), 2, 4, 6, 8, 10, x.itemsize, 7, 0, 1]
    assert ints.tolist() == [41, 0, 42, 9]
    assert doubles.tolist() == [1, 1 / 3, 0]


@over_dtypes
def test_a_number_beyond_int32_and_a_negative_one(dtype: str) -> None:
    @cfunc(KERNEL[dtype])
    def kernel(args, worker, workers):  # type: ignore[no-untyped-def]
        double_span(args, dim(args, 0), 0, 2)[0] = dim(args, 1)
        double_span(args, dim(args, 0), 0, 2)[1] = number(args, 2)

    out = np.zeros(2)
    row = np.array([[out.ctypes.data, -(2**40), struct.unpack("<q", struct.pack("<d", -1.5e-7))[0]]], np.int64)
    Instructions(np.array([kernel.address], np.int64), row).run_alone(0, 1, 1)
    assert out.tolist() == [-(2.0**40), float(np.dtype(dtype).type(-1.5e-7))]


def test_fast_math_assumes_no_number_away() -> None:
    assert not {"nnan", "ninf", "afn", "fast"} & FLAGS

    @inline
    def look(x, y):  # type: ignore[no-untyped-def]
        for i in range(x.size):
            y[i, 0] = np.isfinite(x[i])
            y[i, 1] = x[i] != x[i]
            y[i, 2] = (x[i] - x[i]) == 0

    found = np.zeros((3, 3))
    look(np.array([1.0, np.inf, np.nan]), found)
    assert found.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
