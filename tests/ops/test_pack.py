"""float32 to bfloat16: every special value, every rounding tie, any length, the same bits in every backend."""

from __future__ import annotations

import numpy as np
import pytest
from samples import BACKENDS
from trial import Fence, address

from fastbp.base.dims import Dims
from fastbp.ops.registry import OPS
from fastbp.run.bind import Call
from fastbp.run.program import Instructions

SIZES = (1, 2, 7, 15, 16, 17, 31, 33, 64, 257)


def converted(name: str, source: np.ndarray, backend: str, workers: int = 1) -> np.ndarray:
    """What an op makes of an array; it must not write outside."""
    op, fence = OPS[name], Fence()
    given = fence.full(source.shape, str(source.dtype), 0)
    given[...] = source
    made = fence.full(source.shape, op.dtype_of("y", "float32"), 0)
    made.view(np.uint8)[...] = 0xA5
    call = Call(op, "forward", Dims({"N": 1, "C": source.size}), {}, (given, made))
    call.check("float32")
    if backend == "numpy":
        call.numpy()()
    else:
        kernel = np.array([address(backend, name, "forward", "float32")], np.int64)
        Instructions(kernel, np.array([call.row(0)], np.int64)).run_alone(0, 1, workers)
    assert fence.intact()
    assert given.tobytes() == source.tobytes()
    return made


def nearest(x: np.ndarray) -> np.ndarray:
    """The bfloat16 bits by search, in float64: of the two neighbours the nearer, of two as near the even one."""
    below = x.view(np.uint32) >> 16
    low, high = ((bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for bits in (below, below + 1))
    high = np.where(np.isinf(high), np.copysign(2.0**128, x.astype(np.float64)), high)
    to_low, to_high = np.abs(x - low), np.abs(high - x)
    up = (to_high < to_low) | ((to_high == to_low) & (below % 2 == 1))
    return (below + up).astype(np.uint16)


def finite() -> np.ndarray:
    """Every exponent and sign, with bits above, at and below every kind of tie; denormals are among them."""
    upper = np.arange(1 << 16, dtype=np.uint32)[:, None] << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    x = (upper | lower).ravel().view(np.float32)
    return x[np.isfinite(x)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_finite_number_goes_to_the_nearest_and_ties_to_the_even_one(backend: str) -> None:
    x = finite()
    assert np.array_equal(converted("pack", x, backend), nearest(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(backend: str) -> None:
    bits = np.array([0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0xFF7FFFFF, 1, 0x80000001], np.uint32)
    expected = [0, 0x8000, 0x7F80, 0xFF80, 0x7F80, 0xFF80, 0, 0x8000]
    assert converted("pack", bits.view(np.float32), backend).tolist() == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_nan_stays_a_nan_of_its_sign(backend: str) -> None:
    bits = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0x7F810000] * 5, np.uint32)
    found = converted("pack", bits.view(np.float32), backend)
    assert np.array_equal(found, bits >> 16 | 0x40)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("size", SIZES)
def test_any_length_and_workers_give_the_same_bits(size: int, workers: int, backend: str) -> None:
    x = np.random.default_rng(size).normal(size=size).astype(np.float32)
    assert np.array_equal(converted("pack", x, backend, workers), nearest(x))


def test_the_error_is_at_most_a_part_in_256() -> None:
    x = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    back = converted("unpack", converted("pack", x, "numpy"), "numpy")
    assert 0 < np.abs(back / x - 1).max() <= 2**-8
