"""GELU and its slope over all of float32, in every compiled backend: the errors that stand here are the stated ones.

Absolute errors are shares of max(1, |exact|). Near 0, and above, a relative one holds too; far below 0, where the
result fades out, the exponent's own rounding grows with its size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from samples import BACKENDS, Sample
from scipy.special import erfc, expit
from trial import outcome

from fastbp.base.dims import Dims
from fastbp.kernels.gelu import DENSITY
from fastbp.ops.gelu import CUBIC, TWICE_ROOT

COMPILED = [name for name in BACKENDS if name != "numpy"]
KINDS = ["tanh", "erf"]
SMALLEST = 2 * float(np.finfo(np.float32).tiny)
"""Results from here on are no denormals, which count as 0 in a program."""


@dataclass(frozen=True)
class Bound:
    """The largest errors of y and of the slope, as shares of max(1, |exact|), and of y as a share of |y| for x in
    −1 … ∞ and for x in −5 … −1."""

    value: float
    slope: float
    above: float
    below: float


STATED = {"tanh": Bound(1.8e-7, 2.5e-7, 3.5e-7, 2.5e-6), "erf": Bound(1.4e-7, 3e-7, 5.8e-7, 1.8e-6)}
"""As fastbp/ops/gelu.py states them."""


def exact(kind: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """y and dy/dx in float64, without cancellation."""
    x = np.clip(x.astype(np.float64), -1e3, np.inf)
    near = np.clip(x, -1e3, 1e3)
    if kind == "tanh":
        u2, slope = TWICE_ROOT * (near + CUBIC * near**3), TWICE_ROOT * (1 + 3 * CUBIC * near**2)
        return x * expit(u2), expit(u2) + near * expit(u2) * expit(-u2) * slope
    normal = 0.5 * erfc(-near * np.sqrt(0.5))
    return x * normal, normal + near * DENSITY * np.exp(-0.5 * near**2)


def everywhere(stride: int) -> np.ndarray:
    """One float32 bit pattern in `stride`, from −∞ to ∞ and without NaN, and the range where GELU bends, evenly."""
    patterns = np.arange(0, 2**32, stride, dtype=np.uint64).astype(np.uint32).view(np.float32)
    bend = np.linspace(-14, 14, 2**32 // stride).astype(np.float32)
    return np.concatenate([patterns[~np.isnan(patterns)], bend])


def check(backend: str, kind: str, x: np.ndarray) -> None:
    bound, sample = STATED[kind], Sample("gelu", Dims({"N": 1, "F": x.size}), {"tanh": float(kind == "tanh")})
    y = outcome(sample, "forward", backend, "float32", x=x[None])["y"][0].astype(np.float64)
    slope = outcome(sample, "backward", backend, "float32", x=x[None], dy=1)["dx"][0].astype(np.float64)
    expected, expected_slope = exact(kind, x)
    finite = np.isfinite(x)
    assert np.array_equal(y[~finite], expected[~finite])
    apart = np.abs(y[finite] - expected[finite])
    share = apart / np.maximum(1, np.abs(expected[finite]))
    assert share.max() <= bound.value, (share.max(), x[finite][share.argmax()])
    slope_apart = np.abs(slope - expected_slope)
    assert slope_apart.max() <= bound.slope, (slope_apart.max(), x[slope_apart.argmax()])
    for low, high, limit in ((-1, np.inf, bound.above), (-5, -1, bound.below)):
        inside = (x[finite] > low) & (x[finite] <= high) & (np.abs(expected[finite]) >= SMALLEST)
        relative = apart[inside] / np.abs(expected[finite][inside])
        assert inside.sum() > 1000
        assert relative.max() <= limit, (relative.max(), x[finite][inside][relative.argmax()])


@pytest.mark.parametrize("backend", COMPILED)
@pytest.mark.parametrize("kind", KINDS)
def test_the_stated_errors(backend: str, kind: str) -> None:
    check(backend, kind, everywhere(2**13))


@pytest.mark.slow
@pytest.mark.parametrize("backend", COMPILED)
@pytest.mark.parametrize("kind", KINDS)
def test_the_stated_errors_finely(backend: str, kind: str) -> None:
    check(backend, kind, everywhere(2**8))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_ends(backend: str, dtype: str, kind: str) -> None:
    """0 and x, slopes 0 and 1; NaN stays NaN, in its own lane; a denormal's half, where it does not count as 0."""
    largest, tiny = float(np.finfo(dtype).max), float(np.finfo(dtype).smallest_subnormal)
    x = np.array([-np.inf, -largest, -1e20, np.nan, 1e20, largest, np.inf, 0.0, -0.0, 4 * tiny, -4 * tiny])
    y = np.array([0, 0, 0, np.nan, 1e20, largest, np.inf, 0, 0, 2 * tiny, -2 * tiny]).astype(dtype)
    if backend != "numpy":
        y[-2:] = 0
    slopes = np.array([0, 0, 0, np.nan, 1, 1, 1, 0.5, 0.5, 0.5, 0.5])
    sample = Sample("gelu", Dims({"N": 1, "F": x.size}), {"tanh": float(kind == "tanh")})
    with np.errstate(invalid="ignore"):
        made = outcome(sample, "forward", backend, dtype, x=x[None])["y"][0]
        slope = outcome(sample, "backward", backend, dtype, x=x[None], dy=1)["dx"][0]
    assert np.array_equal(made, y, equal_nan=True), made
    assert np.allclose(slope, slopes, rtol=0, atol=2e-7, equal_nan=True), slope
    assert np.array_equal(slope[[0, 1, 2, 4, 5, 6]], slopes[[0, 1, 2, 4, 5, 6]])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_float64_keeps_its_accuracy(backend: str, kind: str) -> None:
    x = np.linspace(-12, 12, 1001)
    sample = Sample("gelu", Dims({"N": 1, "F": x.size}), {"tanh": float(kind == "tanh")})
    y, slope = exact(kind, x)
    made = outcome(sample, "forward", backend, x=x[None])["y"][0]
    made_slope = outcome(sample, "backward", backend, x=x[None], dy=1)["dx"][0]
    assert np.abs(made - y).max() <= 2e-15
    assert np.abs(made_slope - slope).max() <= 1.2e-14  # the exponent is near 100 far out


def test_the_docstring_states_these_errors() -> None:
    import fastbp.ops.gelu as module

    for kind, bound in STATED.items():
        row = " ".join(f"{number:.2g}".replace("e-0", "e-") for number in vars(bound).values())
        assert f"{kind} {row}" in " ".join(str(module.__doc__).split())
