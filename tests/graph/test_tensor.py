"""A tensor knows its size and no more."""

from __future__ import annotations

import pytest

from fastbp.graph.tensor import Tensor


def test_bytes_follow_the_dtype_of_the_run_except_for_integers() -> None:
    real, ids = Tensor("x", (3, 5), "activation"), Tensor("tokens", (3, 5), "host", "int32")
    assert (real.size, ids.size) == (15, 15)
    assert (real.nbytes(4), real.nbytes(8)) == (60, 120)
    assert (ids.nbytes(4), ids.nbytes(8)) == (60, 60)


def test_a_scalar_has_one_element() -> None:
    assert Tensor("loss", (), "host").size == 1


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="tensor x: kind weight is not one of"):
        Tensor("x", (1,), "weight")
