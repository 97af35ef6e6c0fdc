"""The triad does what it counts. How fast that is, is for benchmarks to say."""

from __future__ import annotations

import numpy as np
import pytest

from fastbp.run import bandwidth
from fastbp.run.bandwidth import LEAST_BYTES, MOST_BYTES, MemoryBandwidth, triad_bytes
from fastbp.run.workers import Workers


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_triad_is_whole_and_counted(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "triad_bytes", lambda: 12 * 1003)
    times = iter([0.0, 2.0, 10.0, 11.0])
    monkeypatch.setattr(bandwidth.time, "perf_counter", lambda: next(times))
    memory = MemoryBandwidth(Workers(workers))
    a, b, c = memory._arrays
    b[:], c[:] = np.arange(1003), np.arange(1003)[::-1]
    assert memory.measure(repeats=2) == pytest.approx(12 * 1003 / 1e9)
    np.testing.assert_array_equal(a, b + 3 * c)


@pytest.mark.parametrize(
    ("caches", "free", "expected"),
    [
        ({}, 1 << 40, LEAST_BYTES),
        ({"L1d": 1 << 15, "L3": 100 << 20}, 1 << 40, 200 << 20),
        ({"L3": 1 << 30}, 1 << 40, MOST_BYTES),
        ({"L3": 1 << 30}, 400 << 20, 100 << 20),
        ({}, 0, 1 << 20),
    ],
)
def test_the_arrays_are_larger_than_caches_and_fit(
    caches: dict[str, int], free: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandwidth, "cpu_caches", lambda: caches)
    monkeypatch.setattr(bandwidth, "available_bytes", lambda: free)
    assert triad_bytes() == expected
