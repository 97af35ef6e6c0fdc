"""The barrier's time is a share of one whole run. How long it takes, is for benchmarks to say."""

from __future__ import annotations

import pytest

from fastbp.run.barrier import MEETINGS, Barrier
from fastbp.run.limits import Limits
from fastbp.run.workers import Workers


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_best_of_the_runs_is_shared_among_its_meetings(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 5.0, 10.0, 14.0, 20.0, 26.0])
    monkeypatch.setattr("fastbp.run.barrier.time.perf_counter", lambda: next(times))
    assert Barrier(Workers(workers)).measure() == pytest.approx(4.0 / MEETINGS)


def test_limits_remember_it() -> None:
    limits = Limits(Workers(2))
    assert [limits.barrier(), limits.barrier()] == limits.barriers
    assert min(limits.barriers) > 0
