"""What is special about the norm: a projection backward, rows without variance, rows far from zero."""

from __future__ import annotations

import numpy as np
import pytest
from samples import BACKENDS, Sample
from trial import distance, outcome

from fastbp.base.dims import Dims

pytestmark = pytest.mark.parametrize("backend", BACKENDS)
SAMPLE = Sample("layernorm", Dims({"N": 5, "C": 33}), {"eps": 1e-12})


def test_rows_get_mean_zero_and_variance_one(backend: str) -> None:
    made = outcome(SAMPLE, "forward", backend, weight=1, bias=0)
    assert np.abs(made["y"].mean(axis=1)).max() < 1e-14
    assert np.abs(made["y"].var(axis=1) - 1).max() < 1e-10
    x = SAMPLE.values["value", "x"]
    assert distance(made["mean"], x.mean(axis=1)) < 1e-14
    assert distance(made["rstd"], 1 / x.std(axis=1)) < 1e-10


def test_dx_is_orthogonal_to_one_and_to_the_normalised_row(backend: str) -> None:
    dx = outcome(SAMPLE, "backward", backend, weight=1)["dx"]
    x = SAMPLE.values["value", "x"]
    centred = x - x.mean(axis=1, keepdims=True)
    assert np.abs(dx).max() > 0.1
    assert np.abs(dx.sum(axis=1)).max() < 1e-12
    assert np.abs((dx * centred).sum(axis=1)).max() < 1e-10


def test_a_row_without_variance_becomes_the_bias(backend: str) -> None:
    sample = Sample("layernorm", Dims({"N": 2, "C": 16}), {"eps": 1e-5})
    made = outcome(sample, "forward", backend, "float32", x=3, bias=0.5)
    assert (made["y"] == 0.5).all()
    assert distance(made["rstd"], np.full(2, 1e-5**-0.5)) < 1e-6


def test_a_row_far_from_zero_keeps_its_variance(backend: str) -> None:
    """Σ x² − (Σ x)² would lose every digit in float32 here."""
    near = np.random.default_rng(1).integers(-8, 9, (5, 33))
    far, close = (outcome(SAMPLE, "forward", backend, "float32", x=near + at, weight=1, bias=0) for at in (1e4, 0))
    assert distance(far["rstd"], close["rstd"]) < 1e-5
    assert distance(far["y"], close["y"]) < 1e-3
