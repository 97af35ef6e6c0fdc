"""The flat buffer: matrices first, every tensor on a cache line, zeros between."""

from __future__ import annotations

import numpy as np
import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import parameter_shapes
from fastbp.memory.flat import LINE_ELEMENTS, Flat, FlatShapes

SHAPES = {"a": (3, 5), "b": (7,), "c": (16,), "d": (2, 2, 9), "e": ()}
SMALL = FlatShapes(SHAPES)


def test_offsets_by_hand() -> None:
    # Matrices first, in order: a takes 16, d (36 elements) 48; then b 16, c 16, e 16.
    assert SMALL.offsets == {"a": 0, "d": 16, "b": 64, "c": 80, "e": 96}
    assert (SMALL.size, SMALL.decayed, SMALL.parameters) == (112, 64, 15 + 36 + 7 + 16 + 1)


@pytest.mark.parametrize("preset", ["seed", "small"])
def test_tensors_of_two_dimensions_are_a_prefix_and_nothing_overlaps(preset: str) -> None:
    shapes = FlatShapes(parameter_shapes(DecoderConfig.preset(preset)))
    owner = np.full(shapes.size, -1)
    for i, (name, shape) in enumerate(shapes.shapes.items()):
        start, size = shapes.offsets[name], int(np.prod(shape))
        assert start % LINE_ELEMENTS == 0
        assert (owner[start : start + size] == -1).all()
        owner[start : start + size] = i
        assert (start + size <= shapes.decayed) == (len(shape) >= 2)
    assert (owner >= 0).sum() == shapes.parameters


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_views_share_the_buffer_and_begin_on_a_line(dtype: str) -> None:
    flat = Flat(SMALL, dtype)
    assert flat.flat.dtype == dtype
    assert flat.flat.size == SMALL.size
    assert not flat.flat.any()
    for i, (name, view) in enumerate(flat.items()):
        assert view.shape == SHAPES[name]
        assert view.dtype == dtype
        assert view.ctypes.data % 64 == 0
        view[...] = i + 1
    for i, name in enumerate(SHAPES):
        start = SMALL.offsets[name]
        assert (flat.flat[start : start + int(np.prod(SHAPES[name]))] == i + 1).all()
    assert np.count_nonzero(flat.flat) == SMALL.parameters  # the gaps stayed zero


def test_it_is_a_mapping_in_the_order_of_the_shapes() -> None:
    flat = Flat(SMALL, "float32")
    assert list(flat) == list(SHAPES)
    assert len(flat) == 5
    assert "a" in flat
    with pytest.raises(KeyError):
        flat["z"]
