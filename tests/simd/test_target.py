"""The targets' tiles fit their registers, and one bound on a panel holds for all of them."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from itertools import pairwise
from pathlib import Path

import llvmlite.binding as llvm
import pytest

import fastbp
from fastbp.simd import blocks, gemm, microkernel, scratch, target
from fastbp.simd.scratch import DEPTH, PANELS, ROWS, panel_elements
from fastbp.simd.target import AVX2, AVX512, GENERIC, TARGET, Target, host_target, vector_length

over_targets = pytest.mark.parametrize("one", [AVX512, AVX2, GENERIC], ids=lambda one: one.name)


@over_targets
def test_a_tile_stays_in_registers(one: Target) -> None:
    """Its accumulators, a row of the panel and one broadcast element; AVX-512 has 32 registers, the others 16."""
    registers = 32 if one is AVX512 else 16
    assert one.tile_rows[0] * one.tile_vectors + one.tile_vectors + 1 <= registers


@over_targets
def test_every_height_is_made_of_tiles(one: Target) -> None:
    """As the product does it: the largest as often as it fits, then each smaller one at most once."""
    largest, *smaller = one.tile_rows
    assert (len(smaller), smaller[-1]) == (3, 1)
    for rest in range(largest):
        for rows in smaller:
            rest -= rows if rows <= rest else 0
        assert rest == 0


def _scratch(one: Target, itemsize: int, depth: int, columns: int, rows: int, by_columns: bool) -> int:
    """Elements that the product uses, counted its own way."""
    lanes, tallest = one.vector_bytes // itemsize, one.tile_rows[0]
    vectors, terms = min(-(-columns // lanes), PANELS * one.tile_vectors), min(depth, DEPTH)
    panels = (vectors if rows > ROWS else min(vectors, one.tile_vectors)) * lanes * terms
    ragged = tallest * one.tile_vectors * lanes
    tiles, blocks = -(-rows // tallest), -(-rows // ROWS)
    cuts = [tiles * block // blocks for block in range(blocks + 1)]
    most = max(stop - start for start, stop in pairwise(cuts))
    return panels + ragged + (most * (terms * tallest + 64 // itemsize) if by_columns else 0)


@over_targets
@pytest.mark.parametrize("itemsize", [4, 8])
def test_panels_a_ragged_tile_and_copies_of_a_fit_the_scratch(one: Target, itemsize: int) -> None:
    for columns in [*range(1, 200), 48 * PANELS - 1, 48 * PANELS, 48 * PANELS + 1, 5000]:
        for rows in (1, 7, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS, 3 * ROWS - 1, 1000):
            for depth in (1, 2, DEPTH - 1, DEPTH, DEPTH + 1, 3 * DEPTH):
                for by_columns in (False, True):
                    used = _scratch(one, itemsize, depth, columns, rows, by_columns)
                    assert used <= panel_elements(depth, columns, rows, by_columns), (columns, rows, depth, by_columns)


def test_the_scratch_stops_growing() -> None:
    assert panel_elements(10 * DEPTH, 10_000, ROWS) == panel_elements(DEPTH, 48, 1) == 48 * DEPTH + 8 * 48
    assert panel_elements(10 * DEPTH, 10_000, 10 * ROWS) == 48 * PANELS * DEPTH + 8 * 48
    assert panel_elements(DEPTH, 48, 10 * ROWS, True) == panel_elements(DEPTH, 48, ROWS, True)
    assert panel_elements(1, 1, 1) < panel_elements(2, 1, 1) < panel_elements(2, 17, 1)


def test_the_scratch_suffices_for_a_share_of_the_rows_and_columns() -> None:
    """A plan sizes it for the whole product, of which a worker has a part."""
    for by_columns in (False, True):
        for whole in ((DEPTH, 600, 2 * ROWS), (20, 300, ROWS + 1), (1000, 40, 3)):
            depth, columns, rows = whole
            sizes = [panel_elements(depth, n, m, by_columns) for n in range(1, columns) for m in range(1, rows, 5)]
            assert max(sizes) <= panel_elements(*whole, by_columns)


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"avx512f": True, "avx512vl": True, "avx2": True, "fma": True}, AVX512),
        ({"avx512f": True, "avx512vl": False, "avx2": True, "fma": True}, AVX2),
        ({"avx2": True, "fma": True}, AVX2),
        ({"avx2": True, "fma": False}, GENERIC),
        ({"neon": True}, GENERIC),
    ],
)
def test_the_target_follows_the_cpus_features(
    features: dict[str, bool], expected: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: features)
    assert host_target() is expected


@over_targets
def test_a_vector_holds_half_as_many_doubles(one: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "TARGET", one)
    assert vector_length(4) == 2 * vector_length(8) == one.vector_bytes // 4


def test_the_target_is_chosen_once_and_cannot_be_changed() -> None:
    assert host_target() is TARGET
    with pytest.raises(FrozenInstanceError):
        TARGET.vector_bytes = 1  # type: ignore[misc]


def test_the_c_product_has_the_same_constants() -> None:
    header = (Path(fastbp.__file__).parent / "_gemm.h").read_text()
    defined = dict(re.findall(r"#define (\w+) +(.*?) *(?:/\*.*)?\n", header))
    twins = {
        scratch: ("DEPTH", "ROWS", "PANELS"), blocks: ("FAR_BYTES", "CACHED_BYTES"),
        gemm: ("FEW_ROWS", "FEWEST_ROWS", "SMALL_BYTES"), microkernel: ("AHEAD", "FAR_AHEAD"),
    }  # fmt: skip
    for module, names in twins.items():
        for name in names:
            assert eval(defined[name]) == getattr(module, name), name


def test_the_c_product_has_the_same_tiles() -> None:
    header = (Path(fastbp.__file__).parent / "_gemm.h").read_text()
    sizes = re.findall(r"#define TILE_ROWS (\d+)\n#define TILE_VECTORS (\d+)", header)
    assert [tuple(map(int, size)) for size in sizes] == [(one.tile_rows[0], one.tile_vectors) for one in (AVX512, AVX2)]
