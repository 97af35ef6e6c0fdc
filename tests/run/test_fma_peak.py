"""The FMA peak counts what it ran. How fast that is, is for benchmarks to say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fastbp.run.fma_peak import ROUNDS, FmaPeak
from fastbp.simd.fma_peak import CHAINS, flops
from fastbp.simd.target import vector_length


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("float64", 8)])
@pytest.mark.parametrize("workers", [1, 2])
def test_every_worker_runs_the_chains(dtype: str, itemsize: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))  # every run takes "one second"
    monkeypatch.setattr("fastbp.run.fma_peak.time.perf_counter", lambda: float(next(ticks)))
    peak = FmaPeak(workers, dtype)
    expected = workers * ROUNDS * CHAINS * 2 * vector_length(itemsize) / 1e9
    assert peak.measure(repeats=1) == pytest.approx(expected)
    # Each chain settles where x = 0.999 x + 0.999; a worker stores the sum of its chains.
    np.testing.assert_allclose(peak._results[:workers], CHAINS * 999, rtol=1e-3)
    assert not peak._results[workers:].any()


def test_the_best_of_the_repeats_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 5.0, 10.0, 14.0, 20.0, 22.0])
    monkeypatch.setattr("fastbp.run.fma_peak.time.perf_counter", lambda: next(times))
    assert FmaPeak(1).measure(repeats=2) == pytest.approx(flops(ROUNDS, 4) / 2.0 / 1e9)


def test_the_figure_is_positive() -> None:
    found = FmaPeak(1).measure(repeats=1)
    assert math.isfinite(found)
    assert found > 0
