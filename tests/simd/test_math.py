"""exp, exp2 and reciprocals over all of float32, as loops of the kernels compile them; the errors are stated there."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import cfunc, types

from fastbp.simd.abi import inline
from fastbp.simd.math import HAS_SCALEF, HIGHEST, LOWEST, exp, exp2, reciprocal
from fastbp.simd.vector import elementwise

EXP_UNITS, EXP2_UNITS = 1.03, 3.1
"""As fastbp/simd/math.py states them."""
SMALLEST, LARGEST = (float(getattr(np.finfo(np.float32), name)) for name in ("tiny", "max"))


@inline
def _exp(x, y):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        y[i] = exp(x[i])


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
    nans = np.array([0x7FC00001, 0xFFC001FF, 0x7FC000FE], np.uint32).view(np.float32)  # with bits that a shift finds
    return np.concatenate([patterns, special, nans, np.linspace(-105, 90, 1_050_000).astype(np.float32)])


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


@pytest.fixture(params=[True, False], ids=["scalef", "bits"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU with scalef and as on one without; the former only where there is one."""
    if request.param and not HAS_SCALEF:
        pytest.skip("this CPU has no scalef")
    monkeypatch.setattr("fastbp.simd.math.HAS_SCALEF", request.param)


def run(intrinsic, x: np.ndarray) -> np.ndarray:
    """What an elementwise intrinsic makes of x, computed by a compiled function of the kernels' kind."""
    kind = types.CPointer(types.float32 if x.dtype == np.float32 else types.float64)
    compiled = cfunc(types.void(kind, types.int64, types.int64, types.int64))(
        lambda args, source, target, size: intrinsic(args, source, target, size)
    )
    y = np.full_like(x, np.nan)
    compiled.ctypes(None, x.ctypes.data, y.ctypes.data, x.size)
    return y


@pytest.mark.usefixtures("either_way")
def test_exp2_is_within_the_stated_units_in_the_last_place(everywhere: np.ndarray) -> None:
    x = everywhere[(everywhere >= -126) & (everywhere <= 127)]
    x = np.concatenate([x, np.linspace(-1, 1, 1_000_000).astype(np.float32)])
    exact = np.exp2(x.astype(np.float64))
    units = np.abs(run(elementwise(exp2), x) - exact) / np.spacing(exact.astype(np.float32))
    assert x.size > 1_000_000
    assert units.max() <= EXP2_UNITS, (units.max(), x[units.argmax()])


@pytest.mark.usefixtures("either_way")
def test_exp2_at_the_ends(everywhere: np.ndarray) -> None:
    y = run(elementwise(exp2), everywhere)
    assert np.array_equal(np.isnan(y), np.isnan(everywhere))
    assert ((y >= 0) & (y <= SMALLEST))[everywhere < -126].all()
    assert (y[everywhere <= -150] == 0).all()
    assert (y[everywhere >= 127] >= 2.0**127).all()
    assert (y[everywhere == 0] == 1).all()


@pytest.mark.usefixtures("either_way")
def test_reciprocal_is_within_one_unit_in_the_last_place(everywhere: np.ndarray) -> None:
    x = everywhere[(np.abs(everywhere) >= SMALLEST) & (np.abs(everywhere) < 2.0**126)]
    exact = 1 / x.astype(np.float64)
    units = np.abs(run(elementwise(reciprocal), x) - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert units.max() <= 1


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 63, 100])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_rows_end_is_masked(size: int, dtype: str) -> None:
    x = np.full(128, 2.0, dtype)
    y = np.full(128, -1.0, dtype)
    kind = types.CPointer(types.float32 if dtype == "float32" else types.float64)
    intrinsic = elementwise(lambda vector: vector * vector)
    compiled = cfunc(types.void(kind, types.int64, types.int64, types.int64))(
        lambda args, source, target, size: intrinsic(args, source, target, size)
    )
    compiled.ctypes(None, x.ctypes.data, y.ctypes.data, size)
    assert (y[:size] == 4).all()
    assert (y[size:] == -1).all()


def test_float64_is_the_c_librarys() -> None:
    x = np.concatenate([np.linspace(-750, 720, 1001), [np.inf, -np.inf]])
    with np.errstate(over="ignore", under="ignore"):
        exact = np.exp(x)
    assert np.allclose(over(_exp, x), exact, rtol=4e-16, atol=0)
    assert np.allclose(run(elementwise(exp2), x), np.exp2(x), rtol=4e-16, atol=0)
    assert np.isnan(over(_exp, np.array([np.nan]))).all()


def test_python_may_call_it_too() -> None:
    assert exp(1.0) == math.e


def test_the_docstring_states_these_errors() -> None:
    import fastbp.simd.math as module

    assert f"exp {EXP_UNITS} units" in str(module.__doc__)
    assert f"exp2 {EXP2_UNITS} units" in str(module.__doc__)
