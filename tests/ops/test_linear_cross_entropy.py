"""What is special about the head: losses on the way back, logits of any size, gradients that sum to nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from samples import BACKENDS, DTYPES, Sample
from trial import distance, outcome

from fastbp.base.dims import Dims

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.parametrize("dtype", DTYPES)]
N, C, V = 9, 17, 65
SAMPLE = Sample("linear_cross_entropy", Dims({"N": N, "C": C, "V": V}))


def test_equal_logits_lose_the_logarithm_of_v(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    made = outcome(SAMPLE, "forward", backend, dtype, weight=0)
    assert distance(made["losses"], np.full(N, math.log(V))) <= tolerance[dtype]


def test_backward_yields_the_losses_of_forward(backend: str, dtype: str) -> None:
    back, forth = (outcome(SAMPLE, way, backend, dtype)["losses"] for way in ("backward", "forward"))
    assert back.tobytes() == forth.tobytes()


def test_rows_that_do_not_count_leave_no_gradient(backend: str, dtype: str) -> None:
    dlosses = np.where(np.arange(N) == 4, 1.0, 0.0)
    made = outcome(SAMPLE, "backward", backend, dtype, dlosses=dlosses)
    assert (made["dx"][dlosses == 0] == 0).all()
    assert (made["dx"][4] != 0).any()
    none = outcome(SAMPLE, "backward", backend, dtype, dlosses=0)
    assert np.array_equal(none["dweight"], SAMPLE.values["gradient", "weight"].astype(dtype))


def test_the_gradients_of_a_rows_logits_sum_to_nothing(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    """With x = 1 everywhere dweight's column is Σ_n dz, and so sums to 0 over the vocabulary."""
    made = outcome(SAMPLE, "backward", backend, dtype, x=1, dweight=0)
    assert np.abs(made["dweight"]).max() > 0.1
    assert np.abs(made["dweight"].sum(axis=0)).max() <= 10 * tolerance[dtype]


def test_logits_of_any_size_stay_finite(backend: str, dtype: str) -> None:
    """The target is the least likely of all by 2·10⁴: its probability is 0, its loss is not infinite."""
    weight = np.zeros((V, C))
    weight[3, 0], weight[8, 0] = 1e4, -1e4
    x = np.eye(1, C)
    made = outcome(SAMPLE, "backward", backend, dtype, x=x, weight=weight, targets=8, dlosses=1, dweight=0)
    assert (made["losses"] == 2e4).all()
    assert (made["dx"][:, 0] == 2e4).all()
    assert np.array_equal(made["dweight"][:, 0], N * ((np.arange(V) == 3) - 1.0 * (np.arange(V) == 8)))


def test_logits_of_minus_infinity_count_nothing(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    """Not even where a row begins with more of them than are summed at a time."""
    sample = Sample("linear_cross_entropy", Dims({"N": 3, "C": 1, "V": 200}))
    weight = np.where(np.arange(200) < 150, -np.inf, 1.0)[:, None]
    made = outcome(sample, "forward", backend, dtype, x=np.ones((3, 1)), weight=weight, targets=199)
    assert distance(made["losses"], np.full(3, math.log(50))) <= tolerance[dtype]
