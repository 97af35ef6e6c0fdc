"""What is special about the softmax: the future weighs exactly nothing, and only differences count."""

from __future__ import annotations

import numpy as np
import pytest
from samples import BACKENDS, DTYPES, Sample
from trial import distance, outcome

from fastbp.base.dims import Dims

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.parametrize("dtype", DTYPES)]
T = 19
SAMPLE = Sample("softmax", Dims({"N": 2 * T, "T": T}), {"scale": 0.5})
FUTURE = np.tile(np.triu(np.ones((T, T), bool), 1), (2, 1))


def test_rows_are_shares_of_the_past(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    p = outcome(SAMPLE, "forward", backend, dtype)["p"]
    assert (p[FUTURE] == 0).all()
    assert (p[~FUTURE] > 0).all()
    assert distance(p.sum(axis=1), np.ones(2 * T)) <= tolerance[dtype]
    assert (p[[0, T], 0] == 1).all()


def test_equal_scores_share_equally(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    p = outcome(SAMPLE, "forward", backend, dtype, s=7)["p"]
    assert distance(p, np.where(FUTURE, 0, 1 / (1 + np.arange(2 * T) % T)[:, None])) <= tolerance[dtype]


@pytest.mark.parametrize("shift", [-4096.0, 4096.0])
def test_a_shift_of_a_whole_row_changes_nothing(backend: str, dtype: str, shift: float) -> None:
    """Scores are multiples of 1/8 here, so that the shift rounds nothing away."""
    s = np.round(8 * SAMPLE.values["value", "s"]) / 8
    here, there = (outcome(SAMPLE, "forward", backend, dtype, s=s + at)["p"] for at in (0, shift))
    assert np.array_equal(here, there)


def test_scores_beyond_every_exponential_stay_finite(backend: str, dtype: str) -> None:
    s = np.where(np.arange(T) % 2, 2e4, -2e4)
    p = outcome(SAMPLE, "forward", backend, dtype, s=s)["p"]
    assert np.isfinite(p).all()
    assert (p[1:T, 0] == 0).all()
    assert p[1, 1] == 1


def test_a_gradient_counts_against_the_average(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    """dp the same everywhere gives nothing; so does every row's sum of ds."""
    even = outcome(SAMPLE, "backward", backend, dtype, dp=3)["ds"]
    assert np.abs(even).max() <= 3 * tolerance[dtype]
    ds = outcome(SAMPLE, "backward", backend, dtype)["ds"]
    assert np.abs(ds).max() > 0.1
    assert np.abs(ds.sum(axis=1)).max() <= tolerance[dtype]
    assert (ds[FUTURE] == 0).all()
