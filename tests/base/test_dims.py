"""Dimensions are bound once, and written shapes mean one thing."""

from __future__ import annotations

import copy
import pickle

import pytest

from fastbp.base.dims import Dims, letters, shape_of, size_of

DIMS = Dims({"N": 6, "C": 4})


def test_a_dimension_is_an_attribute_and_an_item() -> None:
    assert (DIMS.N, DIMS["C"], len(DIMS), list(DIMS)) == (6, 4, 2, ["N", "C"])
    assert {**DIMS, "T": 3} == {"N": 6, "C": 4, "T": 3}
    assert repr(DIMS) == "Dims(N=6, C=4)"


def test_a_missing_dimension_is_named() -> None:
    with pytest.raises(AttributeError, match="no dimension T; there are N C"):
        _ = DIMS.T
    with pytest.raises(KeyError):
        _ = DIMS["T"]


def test_nothing_changes_a_binding() -> None:
    sizes = {"N": 6, "C": 4}
    dims = Dims(sizes)
    sizes["N"] = 7
    with pytest.raises(AttributeError, match=r"immutable \(N\)"):
        dims.N = 7
    assert dims.N == 6


def test_but_makes_another() -> None:
    assert dict(DIMS.but(N=1, T=3)) == {"N": 1, "C": 4, "T": 3}
    assert DIMS.N == 6


def test_equal_bindings_are_one_key() -> None:
    assert DIMS == Dims({"N": 6, "C": 4}) == {"N": 6, "C": 4}
    assert hash(DIMS) == hash(Dims({"N": 6, "C": 4}))
    assert DIMS.but(N=5) != DIMS
    assert len({DIMS, Dims({"N": 6, "C": 4}), DIMS.but(N=5)}) == 2


def test_sizes_become_plain_integers() -> None:
    import numpy as np

    assert type(Dims({"N": np.int64(3)}).N) is int


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda dims: pickle.loads(pickle.dumps(dims))])
def test_copies_are_equal(again) -> None:  # type: ignore[no-untyped-def]
    assert again(DIMS) == DIMS
    assert isinstance(again(DIMS), Dims)


@pytest.mark.parametrize(
    ("written", "shape", "found"),
    [
        ("N C", (6, 4), ("N", "C")),
        ("N 3C", (6, 12), ("N", "C")),
        ("12N", (72,), ("N",)),
        ("8", (8,), ()),
        ("N 2 N", (6, 2, 6), ("N", "N")),
        ("  N   C ", (6, 4), ("N", "C")),
        ("", (), ()),
    ],
)
def test_a_written_shape(written: str, shape: tuple[int, ...], found: tuple[str, ...]) -> None:
    size = 1
    for length in shape:
        size *= length
    assert (shape_of(written, DIMS), size_of(written, DIMS), letters(written)) == (shape, size, found)


@pytest.mark.parametrize("term", ["n", "NC", "C3", "3.5", "-1", "N*C", "2²"])
def test_a_term_that_means_nothing_is_named(term: str) -> None:
    with pytest.raises(ValueError, match=r"is not a dimension: write a capital letter, a number or both"):
        shape_of(f"N {term}", DIMS)
    with pytest.raises(ValueError, match="is not a dimension"):
        letters(term)


def test_a_dimension_that_is_not_bound() -> None:
    with pytest.raises(KeyError):
        shape_of("N T", DIMS)
