"""What is special about GELU: its values, its symmetry, its tails."""

from __future__ import annotations

import numpy as np
import pytest
from samples import BACKENDS, DTYPES, Sample
from trial import distance, outcome

from fastbp.base.dims import Dims

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.parametrize("dtype", DTYPES)]
POINTS = [-2, -1, 0, 0.5, 1, 3]
KNOWN = {
    "tanh": [-0.045402305912224981, -0.1588080093917233, 0, 0.34571400982514392, 0.8411919906082767, 2.996362607918227],
    "erf": [
        -0.045500263896358414,
        -0.15865525393145705,
        0,
        0.34573123063700655,
        0.84134474606854295,
        2.9959503059051097,
    ],
}
"""x (1 + tanh √(2/π)(x + 0.044715 x³))/2 and x·Φ(x), computed to thirty places with mpmath 1.3."""


def _sample(kind: str, size: int) -> Sample:
    return Sample("gelu", Dims({"N": 1, "F": size}), {"tanh": float(kind == "tanh")})


@pytest.mark.parametrize("kind", KNOWN)
def test_known_values(backend: str, dtype: str, kind: str, tolerance: dict[str, float]) -> None:
    made = outcome(_sample(kind, 6), "forward", backend, dtype, x=POINTS)
    assert distance(made["y"][0], np.array(KNOWN[kind])) <= tolerance[dtype]


@pytest.mark.parametrize("kind", KNOWN)
def test_a_value_and_its_mirror_image_are_x_apart(
    backend: str, dtype: str, kind: str, tolerance: dict[str, float]
) -> None:
    """y(x) − y(−x) = x, and so the slopes at x and −x sum to 1."""
    x, sample = np.linspace(-9, 9, 201)[None], _sample(kind, 201)
    y = outcome(sample, "forward", backend, dtype, x=x)["y"]
    slope = outcome(sample, "backward", backend, dtype, x=x, dy=1)["dx"]
    assert distance(y - y[:, ::-1], x) <= tolerance[dtype]
    assert distance(slope + slope[:, ::-1], np.ones_like(x)) <= tolerance[dtype]


@pytest.mark.parametrize("kind", KNOWN)
def test_far_out_it_is_zero_or_x(backend: str, dtype: str, kind: str) -> None:
    """To the point where x³ is infinite in float32: no NaN from 0·∞."""
    x = np.array([[-1e12, -1e6, -1e3, -50, 50, 1e3, 1e6, 1e12]])
    y = outcome(_sample(kind, x.size), "forward", backend, dtype, x=x)["y"]
    slope = outcome(_sample(kind, x.size), "backward", backend, dtype, x=x, dy=1)["dx"]
    assert np.array_equal(y, np.maximum(x, 0).astype(dtype))
    assert np.array_equal(slope, (x > 0).astype(dtype))


def test_the_two_kinds_differ_by_less_than_five_in_ten_thousand(backend: str, dtype: str) -> None:
    x = np.linspace(-5, 5, 101)[None]
    tanh, erf = (outcome(_sample(kind, 101), "forward", backend, dtype, x=x)["y"] for kind in KNOWN)
    assert 1e-4 < np.abs(tanh - erf).max() < 5e-4
