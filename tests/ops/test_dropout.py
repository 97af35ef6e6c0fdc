"""What is special about dropout: the mask. It is one function of the state, the place and the element, it is the same
on every backend, and it is as random as it should be."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from samples import BACKENDS, DTYPES, Sample
from trial import Trial, outcome, same_bits

from fastbp.base.dims import Dims
from fastbp.base.rng import stream
from fastbp.ops.dropout import factors, threshold

each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
N, C = 400, 250


def state_of(*counter: int) -> np.ndarray:
    return stream(*counter[:1], "dropout", *counter[1:]).integers(2**32, size=2, dtype=np.uint32).view(np.int32)


def mask(rate: float = 0.5, place: int = 0, state: np.ndarray | None = None, first_row: int = 0) -> np.ndarray:
    """(N, C): True where an element is kept."""
    known = SimpleNamespace(rate=rate, place=place)
    return factors(known, state_of(1, 2, 0) if state is None else state, first_row, (N, C), np.dtype("float32")) > 0


def sample_of(rate: float, columns: int = 65) -> Sample:
    return Sample("dropout", Dims({"N": 9, "C": columns, "S": 2**20}), {"rate": rate, "place": 11.0})


@each_backend
@each_dtype
@pytest.mark.parametrize("columns", [1, 3, 4, 17, 63, 64, 130])
def test_every_backend_makes_the_bits_of_the_definition(backend: str, dtype: str, columns: int) -> None:
    sample = sample_of(0.3, columns)
    for way in ("forward", "backward"):
        expected = Trial(sample, way, "numpy", dtype).run().results()
        assert same_bits(Trial(sample, way, backend, dtype).run().results(), expected)


@each_backend
@each_dtype
def test_both_directions_have_one_mask(backend: str, dtype: str) -> None:
    x = sample_of(0.3).values["value", "x"]
    y = outcome(sample_of(0.3), "forward", backend, dtype, x=x)["y"]
    assert np.array_equal(y, outcome(sample_of(0.3), "backward", backend, dtype, dy=x)["dx"])


@each_backend
@each_dtype
def test_nothing_is_dropped_at_rate_0(backend: str, dtype: str) -> None:
    sample = sample_of(0.0)
    assert np.array_equal(outcome(sample, "forward", backend, dtype)["y"], sample.values["value", "x"].astype(dtype))


@each_backend
@each_dtype
@pytest.mark.parametrize("rate", [1e-12, 1 - 1e-3, 1 - 2**-31, 1 - 2**-53])
def test_rates_next_to_0_and_1(backend: str, dtype: str, rate: float) -> None:
    sample = sample_of(rate)
    made = outcome(sample, "forward", backend, dtype)["y"]
    x, scale = sample.values["value", "x"].astype(dtype), np.dtype(dtype).type(1 / (1 - rate))
    kept = made != 0
    assert np.isfinite(made).all()
    assert np.array_equal(made[kept], (x * scale)[kept])
    assert kept.all() if rate < 0.5 else kept.mean() < 0.02


def test_the_threshold_is_the_share_of_all_words() -> None:
    assert [threshold(rate) for rate in (0.0, 0.5, 0.1, 1 - 2**-53)] == [0, 2**31, 429496730, 2**32 - 1]


@each_backend
def test_a_nan_stays_one_where_it_is_dropped(backend: str) -> None:
    sample = sample_of(0.9)
    y = outcome(sample, "forward", backend, "float32", x=np.full((9, 65), np.nan))["y"]
    assert np.isnan(y).all()


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5, 0.9])
def test_as_many_are_kept_as_should_be(rate: float) -> None:
    """Within four standard deviations: of all, of every row, and of every column."""
    kept = mask(rate)
    for axis, count, extremes in ((None, N * C, 1), (0, N, C), (1, C, N)):
        deviation = np.abs(kept.mean(axis=axis) - (1 - rate)) / np.sqrt(rate * (1 - rate) / count)
        assert np.max(deviation) < (4 if extremes == 1 else 5)


def test_what_is_kept_is_scaled_so_that_the_mean_stays() -> None:
    known = SimpleNamespace(rate=0.2, place=0)
    values = factors(known, state_of(1, 2, 0), 0, (N, C), np.dtype("float64"))
    assert set(np.unique(values)) == {0.0, 1 / (1 - 0.2)}
    assert abs(values.mean() - 1) < 4 * np.sqrt(0.2 / 0.8 / (N * C))


def agreement(one: np.ndarray, other: np.ndarray) -> float:
    """The correlation of two masks in standard deviations."""
    return abs(float(np.corrcoef(one.ravel(), other.ravel())[0, 1])) * np.sqrt(one.size)


OTHERS = {
    "another seed": {"state": state_of(2, 2, 0)},
    "the next update": {"state": state_of(1, 3, 0)},
    "the next micro-batch": {"state": state_of(1, 2, 1)},
    "another site of the block": {"place": 1},
    "the same site of the next block": {"place": 3},
}


@pytest.mark.parametrize("changed", OTHERS.values(), ids=OTHERS)
def test_masks_of_different_origin_are_independent(changed: dict) -> None:
    assert agreement(mask(), mask(**changed)) < 4


@pytest.mark.parametrize("shift", [(0, 1), (0, 2), (0, 4), (1, 0), (1, 1), (4, 0), (16, 0)])
def test_elements_are_independent_of_their_neighbours(shift: tuple[int, int]) -> None:
    down, right = shift
    kept = mask()
    assert agreement(kept[down:, right:], kept[: N - down, : C - right]) < 4


def test_every_pattern_of_eight_neighbours_is_as_frequent() -> None:
    """χ² of 256 patterns, whose mean is 255 and whose deviation √510."""
    kept = mask()[:, : C // 8 * 8].reshape(-1, 8)
    counts = np.bincount(kept @ (1 << np.arange(8)), minlength=256)
    expected = len(kept) / 256
    assert abs(((counts - expected) ** 2 / expected).sum() - 255) < 4 * np.sqrt(510)


def test_a_slice_has_the_mask_of_its_rows() -> None:
    assert np.array_equal(mask(first_row=100)[:-100], mask()[100:])
