"""The product against NumPy: every orientation, ragged sizes, ways to start, both dtypes; and its bits."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numba import cfunc
from trial import Fence

from fastbp.run import numba_backend
from fastbp.run.program import Instructions
from fastbp.simd import blocks, gemm
from fastbp.simd.abi import KERNEL, dim, itemsize
from fastbp.simd.gemm import share, shared_gemm
from fastbp.simd.microkernel import FORMS, forms
from fastbp.simd.scratch import DEPTH, PANELS, ROWS, panel_elements
from fastbp.simd.target import AVX2, AVX512, GENERIC, TARGET

NEAR, FAR = 3, 2100
"""Elements between the rows of a matrix: with the latter, columns of A lie far apart and a C of many rows is large."""
CASES = [
    *((NEAR, size) for size in (
        (1, 1, 1), (1, 5, 2), (2, 1, 17), (3, 15, 1), (5, 16, 16), (6, 17, 3), (7, 33, 8), (8, 31, 65), (9, 47, 31),
        (9, 2, 5), (11, 4, 3), (10, 8, 3), (9, 16, 4), (13, 48, 48), (15, 49, 33),
        (16, 64, 16), (17, 65, 20), (31, 97, 7), (23, 144, 5),
        (7, 3, DEPTH), (5, 50, DEPTH + 1), (11, 17, 2 * DEPTH + 3), (12, 200, 2 * DEPTH),
        (ROWS + 3, 97, 4), (2 * ROWS + 9, 48, DEPTH + 2), (9, 48 * PANELS + 50, 3),
    )),
    *((FAR, size) for size in (
        (1, 49, 2), (8, 48, 5), (15, 160, 3), (17, 131, DEPTH + 1), (ROWS + 3, 96, 7), (ROWS + 4, 16, 9),
        (ROWS + 5, 4, 9), (ROWS + 8, 48 * PANELS + 32, 2),
    )),
]  # fmt: skip
"""Gap and (M, N, K): around the tile's rows, the vectors of every target, a panel's depth and the sizes of a block."""
TARGETS = (AVX512, AVX2, GENERIC)
STARTS = ("zero", "bias", "itself", "other")
ORIENTATIONS = [(a, b) for a in ("rows", "columns") for b in ("plain", "transposed")]


def _kernel(args, worker, workers):  # type: ignore[no-untyped-def]
    panel = dim(args, 13) + worker * dim(args, 14) * itemsize(args)
    shared_gemm(
        args, worker, workers, dim(args, 0), dim(args, 1), dim(args, 2), dim(args, 3), dim(args, 4), dim(args, 5),
        dim(args, 6), dim(args, 7), dim(args, 8), dim(args, 9), dim(args, 10), dim(args, 11), dim(args, 12), panel, 0,
    )  # fmt: skip


@cache
def _compiled(dtype: str):
    numba_backend.address("linear", "forward", dtype)  # makes the product known to the linker
    return cfunc(KERNEL[dtype])(_kernel)


@dataclass
class Product:
    """One product with operands in memory as asked, rows of A, B and C further apart than they are long."""

    size: tuple[int, int, int]
    dtype: str
    a: str = "rows"
    b: str = "plain"
    start: str = "zero"
    workers: int = 1
    gap: int = NEAR

    def __post_init__(self) -> None:
        self.fence, (M, N, K) = Fence(), self.size
        self.A, _ = self._operand((M, K), self.a == "columns")
        self.B, _ = self._operand((K, N), self.b == "transposed")
        self.C, self.gaps = self._operand((M, N))
        self.bias, _ = self._operand((1, N))
        self.other, _ = self._operand((M, N))
        self.P = panel_elements(K, N, M, self.a == "columns")
        self.panel = self.fence.full((self.workers * self.P,), self.dtype, np.nan)

    def _operand(self, shape: tuple[int, int], turned: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """A matrix and what lies between its rows."""
        rows, columns = shape[::-1] if turned else shape
        wide = self.fence.full((rows, columns + self.gap), self.dtype, np.nan)
        return wide[:, :columns].T if turned else wide[:, :columns], wide[:, columns:]

    def draw(self, seed: int = 0, coarse: bool = False) -> Product:
        """Fills everything; coarse numbers are multiples of 2^-18 between -1 and 1."""
        random = np.random.default_rng(seed)
        for operand in (self.A, self.B, self.C, self.bias, self.other):
            values = random.uniform(-1, 1, operand.shape)
            operand[...] = np.round(values * 2**18) / 2**18 if coarse else values
        return self

    @property
    def init(self) -> np.ndarray:
        """What the sum starts from."""
        starts = {"zero": np.zeros_like(self.C), "bias": self.bias, "itself": self.C, "other": self.other}
        return np.broadcast_to(starts[self.start], self.C.shape).copy()

    def run(self) -> Product:
        A, B, C, other = (
            (matrix.ctypes.data, *(stride // matrix.itemsize for stride in matrix.strides))
            for matrix in (self.A, self.B, self.C, self.other)
        )
        start = {"zero": (0, 0), "bias": (self.bias.ctypes.data, 0), "itself": C[:2], "other": other[:2]}[self.start]
        row = (*self.size, *A, *B, *C[:2], *start, self.panel.ctypes.data, self.P)
        function = np.array([_compiled(self.dtype).address], np.int64)
        Instructions(function, np.array([row], np.int64)).run_alone(0, 1, self.workers)
        return self


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("a", "b"), ORIENTATIONS)
def test_the_product_is_numpys(a: str, b: str, start: str, dtype: str) -> None:
    """Within the bound of any two orders of summation: K + 1 roundings each of the sum of absolute values."""
    for gap, size in CASES:
        product = Product(size, dtype, a, b, start, gap=gap).draw()
        before = [operand.copy() for operand in (product.A, product.B, product.bias, product.other)]
        A, B, init = (operand.astype(np.longdouble) for operand in (product.A, product.B, product.init))
        product.run()
        bound = (size[2] + 1) * np.finfo(dtype).eps * (np.abs(A) @ np.abs(B) + np.abs(init))
        assert (np.abs(product.C - (A @ B + init)) <= bound).all(), (gap, size)
        after = [product.A, product.B, product.bias, product.other]
        assert all(np.array_equal(one, two) for one, two in zip(before, after, strict=True)), (gap, size)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("a", "b"), ORIENTATIONS)
def test_nothing_outside_is_written(a: str, b: str, dtype: str) -> None:
    """Neither between C's rows, nor behind the last worker's `panel_elements`, nor anywhere around."""
    for workers in (1, 3):
        for gap, size in CASES:
            product = Product(size, dtype, a, b, "bias", workers, gap).draw().run()
            assert np.isnan(product.gaps).all(), (gap, size, workers)
            assert product.fence.intact(), (gap, size, workers)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("a", "b"), ORIENTATIONS)
def test_an_element_is_one_chain_of_fused_steps_in_the_order_of_k(a: str, b: str, start: str) -> None:
    """In float32, on numbers whose products and sums float64 holds exactly, so that it rounds once, as an FMA does."""
    for gap, size in CASES:
        product = Product(size, "float32", a, b, start, gap=gap).draw(coarse=True)
        A, B, expected = product.A.astype(np.float64), product.B.astype(np.float64), product.init
        for k in range(size[2]):
            expected = (expected + A[:, k : k + 1] * B[k : k + 1]).astype(np.float32)
        assert np.array_equal(product.run().C, expected), (gap, size)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("a", "b"), ORIENTATIONS)
def test_workers_give_the_same_bits(a: str, b: str, dtype: str) -> None:
    for gap, size in [*CASES, (NEAR, (70, 130, 40)), (NEAR, (200, 130, 40)), (FAR, (70, 130, 40))]:
        alone = Product(size, dtype, a, b, "itself", gap=gap).draw().run()
        for workers in (2, 3):
            shared = Product(size, dtype, a, b, "itself", workers, gap).draw().run()
            assert np.array_equal(shared.C, alone.C), (gap, size, workers)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("a", "b"), ORIENTATIONS)
def test_the_bits_of_an_element_do_not_depend_on_what_is_around(a: str, b: str, dtype: str) -> None:
    """The same rows and columns as a product of their own, in other forms of the tile."""
    M, N, K = ROWS + 29, 48 * PANELS + 53, DEPTH + 9
    whole = Product((M, N, K), dtype, a, b, "other", gap=FAR).draw().run()
    for rows, columns in (((0, 1), (0, N)), ((3, 20), (0, 17)), ((28, 29), (50, 101)), ((0, M), (99, 100))):
        part = Product((rows[1] - rows[0], columns[1] - columns[0], K), dtype, a, b, "other")
        part.A[...], part.B[...] = whole.A[slice(*rows)], whole.B[:, slice(*columns)]
        part.other[...] = whole.other[slice(*rows), slice(*columns)]
        assert np.array_equal(part.run().C, whole.C[slice(*rows), slice(*columns)]), (rows, columns)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_not_a_number_stays_in_its_row_and_column(dtype: str) -> None:
    """Padding multiplies nothing: NaN and infinity spread as the maths has it and no further."""
    product = Product((9, 19, 33), dtype).draw()
    product.A[4, 7], product.B[2, 11] = np.inf, np.nan
    finite = np.isfinite(product.run().C)
    expected = np.ones((9, 19), bool)
    expected[4], expected[:, 11] = False, False
    assert np.array_equal(finite, expected)


def test_an_empty_product_writes_nothing() -> None:
    for size in ((0, 5, 3), (5, 0, 3)):
        product = Product(size, "float32", start="bias", workers=2).draw().run()
        assert np.isnan(product.gaps).all()
        assert product.fence.intact()


@pytest.mark.parametrize("unit", [1, 6, 16])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_shares_cover_everything_once_and_are_cut_at_units(unit: int, workers: int) -> None:
    for size in (0, 1, 5, 6, 16, 17, 100):
        parts = [share(size, worker, workers, unit) for worker in range(workers)]
        assert [stop for _, stop in parts[:-1]] == [start for start, _ in parts[1:]]
        assert (parts[0][0], parts[-1][1]) == (0, size)
        assert all(start % unit == 0 or start == size for start, _ in parts)
        lengths = [-(-(stop - start) // unit) for start, stop in parts]
        assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("other", [target.name for target in TARGETS if target != TARGET])
def test_the_targets_of_other_machines_compute_the_same(other: str, tmp_path: Path) -> None:
    """These tests again, for a vector unit that is not this CPU's; LLVM splits vectors that are too wide for it."""
    code = (
        "import sys, pytest; from fastbp.simd import target;"
        f"target.TARGET = next(one for one in (target.AVX512, target.AVX2, target.GENERIC) if one.name == {other!r});"
        f"which = ['-k', 'float32 and (numpys or outside) or meet'];"
        f"sys.exit(pytest.main([{__file__!r}, '-p', 'no:cacheprovider', *which]))"
    )
    environment = {**os.environ, "FASTBP_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "23 passed" in done.stdout


def _tiles_met(monkeypatch: pytest.MonkeyPatch, size: int) -> set[tuple[int, int, int, int]]:
    """Rows, vectors, form, and whether C is fetched, of every tile that the cases run: the blocking as plain Python,
    with a recorder in the place of the tile."""
    met = set()
    ceiling, cut = blocks.ceiling.py_func, blocks.cut.py_func

    def record(args, rows, vectors, form, depth, *operands):  # type: ignore[no-untyped-def]
        met.add((rows, vectors, form, operands[-1]))

    def ragged(args, vectors, columns, rows, depth, scratch, a, a_row, a_col, *_):  # type: ignore[no-untyped-def]
        blocks.panel_entry(args, vectors, rows, depth, 0, 0, a, a_row, a_col, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0)

    for module in (blocks, gemm):
        monkeypatch.setattr(module, "itemsize", lambda args: size)
        monkeypatch.setattr(module, "ceiling", ceiling)
        monkeypatch.setattr(module, "cut", cut)
    monkeypatch.setattr(blocks, "block_depth", lambda args: DEPTH)
    monkeypatch.setattr(blocks, "block_rows", lambda args: ROWS)
    monkeypatch.setattr(gemm, "block_panels", lambda args: PANELS)
    monkeypatch.setattr(blocks, "tile", record)
    monkeypatch.setattr(blocks, "run_panel", blocks.panel_entry)
    monkeypatch.setattr(blocks, "run_ragged_panel", ragged)
    monkeypatch.setattr(blocks, "pack_rows", lambda *_: None)
    monkeypatch.setattr(blocks, "pack_columns", lambda *_: None)
    monkeypatch.setattr(gemm, "block_product", blocks.block_product.py_func)
    for gap, (M, N, K) in CASES:
        for a_strides in ((K + gap, 1), (1, M + gap)):
            for b_strides in ((N + gap, 1), (1, K + gap)):
                gemm.gemm_entry(None, M, N, K, 1, *a_strides, 1, *b_strides, 1, N + gap, 0, 0, 1, 0)
    return met


@pytest.mark.parametrize("size", [4, 8])
def test_the_cases_meet_every_form_of_the_tile(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    met = _tiles_met(monkeypatch, size)
    assert {one[:3] for one in met} == set(forms(TARGET))
    assert {form for *_, form, fetch_c in met if fetch_c} == set(FORMS)


def test_the_cases_meet_every_remainder() -> None:
    """Whatever the target."""
    tallest, lanes = TARGET.tile_rows[0], TARGET.vector_bytes // 4
    assert {M % tallest for _, (M, _, _) in CASES} == set(range(tallest))
    assert {0, 1, lanes - 1} <= {N % lanes for _, (_, N, _) in CASES}
    assert {-(-N // lanes) % TARGET.tile_vectors for _, (_, N, _) in CASES} == set(range(TARGET.tile_vectors))
