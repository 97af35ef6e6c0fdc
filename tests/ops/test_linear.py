"""What is special about the linear map: its weight lies (in, out), and a square one turned would go unnoticed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from samples import BACKENDS, DTYPES, Sample
from trial import Trial, outcome

from fastbp.base.dims import Dims

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.parametrize("dtype", DTYPES)]
SQUARE = Sample("linear", Dims({"N": 19, "I": 19, "O": 19}))


def test_unit_rows_read_the_weights_rows(backend: str, dtype: str) -> None:
    weight = np.arange(19 * 19).reshape(19, 19)
    made = outcome(SQUARE, "forward", backend, dtype, x=np.eye(19), weight=weight, bias=1000 * np.arange(19))
    assert np.array_equal(made["y"], weight + 1000 * np.arange(19))


def test_unit_gradients_read_the_weights_columns(backend: str, dtype: str) -> None:
    weight = np.arange(19 * 19).reshape(19, 19)
    made = outcome(SQUARE, "backward", backend, dtype, dy=np.eye(19), weight=weight)
    assert np.array_equal(made["dx"], weight.T)


def test_one_row_gives_the_outer_product(backend: str, dtype: str) -> None:
    sample = Sample("linear", Dims({"N": 1, "I": 3, "O": 5}))
    x, dy = np.array([[1, 2, 3]]), np.array([[1, 0, 4, 0, 5]])
    made = outcome(sample, "backward", backend, dtype, x=x, dy=dy, dweight=10, dbias=20)
    assert np.array_equal(made["dweight"], 10 + x.T * dy)
    assert np.array_equal(made["dbias"], 20 + dy[0])


def test_no_bias_is_a_bias_of_zero(backend: str, dtype: str) -> None:
    values = {port: SQUARE.values["value", port] for port in ("x", "weight")}
    without = outcome(replace(SQUARE, without=("bias",)), "forward", backend, dtype, **values)
    assert np.array_equal(without["y"], outcome(SQUARE, "forward", backend, dtype, bias=0)["y"])


@pytest.mark.parametrize("size", [(400, 20, 48), (400, 20, 97), (400, 3, 48), (9, 300, 200)])
def test_the_bias_gradient_grows_row_by_row(backend: str, dtype: str, size: tuple[int, int, int]) -> None:
    """Whatever reads dy for it: to the bit the same chain, which slices and workers may cut anywhere."""
    if backend == "numpy":
        pytest.skip("NumPy sums in its own order")
    N, I, O = size
    sample = Sample("linear", Dims({"N": N, "I": I, "O": O}))
    dy = np.random.default_rng(0).standard_normal((N, O)).astype(dtype)
    total = np.full(O, 3, dtype)
    for row in dy:
        total += row
    values = sample.values | {("gradient", "y"): dy, ("gradient", "bias"): 3}
    for workers in (1, 2, 3):
        made = Trial(sample, "backward", backend, dtype, workers=workers, values=values).run().results()
        assert np.array_equal(made["gradient", "bias"], total)
