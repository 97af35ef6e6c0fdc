"""exp and erf over all of float32, as loops of the kernels compile them; the errors are those of the docstring."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import erf as exact_erf

from fastbp.simd.abi import inline
from fastbp.simd.math import HIGHEST, LOWEST, erf, exp

EXP_UNITS, ERF_ABSOLUTE = 1.03, 5.7e-7
"""As fastbp/simd/math.py states them."""
SMALLEST, LARGEST = (float(getattr(np.finfo(np.float32), name)) for name in ("tiny", "max"))


@inline
def _exp(x, y):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        y[i] = exp(x[i])


@inline
def _erf(x, y):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        y[i] = erf(x[i])


def over(function, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    function(x, y)
    return y


@pytest.fixture(scope="module")
def everywhere() -> np.ndarray:
    """2.1 million float32: one bit pattern in 4,096, denormals, infinities and NaN among them, and the range in which
    exp is neither 0 nor infinite, evenly."""
    patterns = np.arange(0, 2**32, 2**12, dtype=np.uint64).astype(np.uint32).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, SMALLEST, LARGEST, -LARGEST], np.float32)
    return np.concatenate([patterns, special, np.linspace(-105, 90, 1_050_000).astype(np.float32)])


def test_exp_is_within_the_stated_units_in_the_last_place(everywhere: np.ndarray) -> None:
    x = everywhere[(everywhere >= np.float32(LOWEST)) & (everywhere <= np.float32(HIGHEST))]
    exact = np.exp(x.astype(np.float64))
    units = np.abs(over(_exp, x) - exact) / np.spacing(exact.astype(np.float32))
    assert x.size > 1_000_000
    assert units.max() <= EXP_UNITS, (units.max(), x[units.argmax()])


def test_exp_is_zero_where_it_would_be_denormal_and_infinite_where_it_overflows(everywhere: np.ndarray) -> None:
    with np.errstate(over="ignore", invalid="ignore"):  # a signalling NaN is among the patterns
        exact = np.exp(everywhere.astype(np.float64))
    y = over(_exp, everywhere)
    assert (y[exact < SMALLEST] == 0).all()
    assert (y[exact > LARGEST] == np.inf).all()
    assert np.array_equal(np.isnan(y), np.isnan(everywhere))


def test_exp_at_the_ends() -> None:
    ends = np.array([-np.inf, np.inf, 0, -0.0, -1e-45, np.nan], np.float32)
    assert np.array_equal(over(_exp, ends), np.array([0, np.inf, 1, 1, 1, np.nan], np.float32), equal_nan=True)


@pytest.mark.parametrize(("bound", "limit"), [(LOWEST, SMALLEST), (HIGHEST, LARGEST)])
def test_the_bounds_are_the_last_float32_inside(bound: float, limit: float) -> None:
    last = np.float32(bound)
    beyond = np.nextafter(last, np.float32(bound * 2))
    assert abs(math.log(limit)) - abs(float(last)) >= 0 > abs(math.log(limit)) - abs(float(beyond))


def test_erf_is_within_the_stated_error(everywhere: np.ndarray) -> None:
    numbers = everywhere[~np.isnan(everywhere)]
    x = np.concatenate([numbers, np.linspace(-6, 6, 1_000_000).astype(np.float32)])
    y = over(_erf, x)
    apart = np.abs(y - exact_erf(x.astype(np.float64)))
    assert apart.max() <= ERF_ABSOLUTE, (apart.max(), x[apart.argmax()])
    assert np.abs(y).max() <= 1


def test_erf_at_the_ends() -> None:
    ends = np.array([-np.inf, np.inf, 0, np.nan], np.float32)
    assert np.array_equal(over(_erf, ends), np.array([-1, 1, 0, np.nan], np.float32), equal_nan=True)


def test_float64_is_the_c_librarys() -> None:
    x = np.concatenate([np.linspace(-750, 720, 1001), [np.inf, -np.inf]])
    with np.errstate(over="ignore", under="ignore"):
        exact = np.exp(x)
    assert np.allclose(over(_exp, x), exact, rtol=4e-16, atol=0)
    assert np.allclose(over(_erf, x / 100), exact_erf(x / 100), rtol=4e-16, atol=1e-16)
    assert np.isnan(over(_exp, np.array([np.nan]))).all()


def test_python_may_call_them_too() -> None:
    assert (exp(1.0), erf(0.5)) == (math.e, math.erf(0.5))


def test_the_docstring_states_these_errors() -> None:
    import fastbp.simd.math as module

    assert f"exp {EXP_UNITS} units" in str(module.__doc__)
    assert f"erf {ERF_ABSOLUTE:g} absolute".replace("e-07", "e-7") in str(module.__doc__).replace("\n", " ")
