"""The strips of tiled attention: products of any shape, and numbers that its two backends share."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numba import cfunc
from trial import Fence

import fastbp
from fastbp.kernels.tiled_attention import IN_PLACE
from fastbp.ops.tiled_attention import BLOCK
from fastbp.run import numba_backend
from fastbp.run.program import Instructions
from fastbp.simd.abi import KERNEL, dim
from fastbp.simd.attention import BLOCK_VECTORS, EXP2, strip_product, weigh
from fastbp.simd.target import AVX512, vector_length

HEADER = (Path(fastbp.__file__).parent / "_attention.h").read_text()


def _product(args, worker, workers):  # type: ignore[no-untyped-def]
    strip_product(
        args, dim(args, 0), dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4), dim(args, 5), dim(args, 6),
        dim(args, 7), dim(args, 8), dim(args, 9), dim(args, 10),
    )  # fmt: skip


def _weigh(args, worker, workers):  # type: ignore[no-untyped-def]
    weigh(args, BLOCK_VECTORS, dim(args, 0), dim(args, 1), dim(args, 2), dim(args, 3), args[8])


@cache
def _compiled(kernel, dtype: str):  # type: ignore[no-untyped-def]
    numba_backend.address("tiled_attention", "forward", dtype)  # makes the product known to the linker
    return cfunc(KERNEL[dtype])(kernel)


def _run(kernel, dtype: str, *row: int) -> None:  # type: ignore[no-untyped-def]
    table = np.array([row], np.int64)
    Instructions(np.array([_compiled(kernel, dtype).address], np.int64), table).run_alone(0, 1, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("add", [0, 1])
@pytest.mark.parametrize(
    ("vectors", "rows", "depth"), [(1, 1, 1), (2, 7, 3), (3, 8, 33), (3, 21, 5), (4, 15, 2), (8, 2, 9)]
)
def test_a_product_of_strips(dtype: str, by_columns: bool, add: int, vectors: int, rows: int, depth: int) -> None:
    random, fence = np.random.default_rng(5), Fence()
    size, width = np.dtype(dtype).itemsize, vectors * vector_length(np.dtype(dtype).itemsize)
    a = fence.full((depth, rows) if by_columns else (rows, depth), dtype, 0)
    b, c = fence.full((depth, width), dtype, 0), fence.full((rows, width), dtype, np.nan)
    a[...], b[...] = random.normal(size=a.shape), random.normal(size=b.shape)
    if add:
        c[...] = random.normal(size=c.shape)
    expected = (a.T if by_columns else a).astype(float) @ b + (c if add else 0)
    a_row, a_col = (size, rows * size) if by_columns else (depth * size, size)
    a_at, b_at, c_at = (array.ctypes.data for array in (a, b, c))
    _run(_product, dtype, vectors, rows, depth, a_at, a_row, a_col, b_at, width * size, c_at, width * size, add)
    assert np.abs(c - expected).max() <= {"float32": 1e-5, "float64": 1e-13}[dtype]
    assert fence.intact()


def test_a_weight_is_a_power_of_two() -> None:
    """Exact at 0, within a unit in the last place of 2^x, 0 below the smallest normal number, NaN for NaN."""
    width = BLOCK_VECTORS * vector_length(4)
    x = np.concatenate([-np.linspace(0, 125.9, 40 * width - 4), [-127, -1e30, -np.inf, np.nan]]).astype(np.float32)
    s, peak, total = x.reshape(-1, width).copy(), np.zeros(width, np.float32), np.zeros(width, np.float32)
    power = int(np.array([1, 0], np.float32).view(np.int64)[0])
    _run(_weigh, "float32", len(s), s.ctypes.data, peak.ctypes.data, total.ctypes.data, power)
    got, exact = s.ravel(), np.exp2(x.astype(float))
    assert got[0] == 1
    assert np.abs(got[:-4] / exact[:-4] - 1).max() <= 2**-23
    assert (got[-4:-1] == 0).all()
    assert np.isnan(got[-1])
    assert np.isnan(total).sum() == 1


def test_the_c_twin_has_the_same_numbers() -> None:
    """The polynomial, the vectors of a block, and the tokens from which on rows are copied."""
    polynomial = HEADER[HEADER.index("INLINE vec weight_of") : HEADER.index("/* log x")]
    found = [float(number) for number in re.findall(r" p = .*splat\((.+)f\);", polynomial)]
    assert found == list(EXP2)
    assert f"#define QUERY_VECTORS {BLOCK_VECTORS}\n" in HEADER
    assert f"T > {IN_PLACE} || D % LANES" in HEADER
    assert BLOCK_VECTORS * AVX512.vector_bytes // 4 == BLOCK
