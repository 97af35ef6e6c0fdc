"""The targets' tiles fit their registers, and one bound on a panel holds for all of them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import llvmlite.binding as llvm
import pytest

import fastbp
from fastbp.simd import target
from fastbp.simd.target import AVX2, AVX512, DEPTH, GENERIC, TARGET, Target, host_target, panel_elements, vector_length

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


@over_targets
@pytest.mark.parametrize("itemsize", [4, 8])
def test_a_panel_and_a_ragged_tile_fit_the_scratch(one: Target, itemsize: int) -> None:
    lanes = one.vector_bytes // itemsize
    for columns in range(1, 200):
        vectors = -(-columns // lanes)
        panels = -(-vectors // one.tile_vectors)
        widest = max(vectors * (p + 1) // panels - vectors * p // panels for p in range(panels)) * lanes
        for depth in (1, 2, DEPTH - 1, DEPTH, DEPTH + 1, 3 * DEPTH):
            assert min(depth, DEPTH) * widest + 8 * widest <= panel_elements(depth, columns), (columns, depth)


def test_a_panels_scratch_stops_growing() -> None:
    assert panel_elements(10 * DEPTH, 10_000) == panel_elements(DEPTH, 48) == 48 * DEPTH + 8 * 48
    assert panel_elements(1, 1) < panel_elements(2, 1) < panel_elements(2, 17)


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


def test_the_c_product_packs_as_many_terms() -> None:
    header = (Path(fastbp.__file__).parent / "_gemm.h").read_text()
    assert f"#define DEPTH {DEPTH} " in header
