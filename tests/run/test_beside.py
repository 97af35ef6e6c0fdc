"""A time counts in units of a reference right before it, where the workers are near to each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fastbp.run import beside
from fastbp.run.beside import FEWEST, Beside


class Meetings:
    """A barrier that takes as long as it is told."""

    def __init__(self, seconds: Iterator[float]) -> None:
        self._seconds = seconds

    def measure(self, repeats: int) -> float:
        return next(self._seconds)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "SECONDS", 0.0)
    monkeypatch.setattr(beside, "PAUSE", 0.0)


def reference_takes(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    found = iter(seconds)
    monkeypatch.setattr(beside, "seconds_of", lambda run: next(found))


def test_a_machine_that_slows_down_changes_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    reference_takes(monkeypatch, 1.0, 2.0, 4.0)
    took = iter([(3.0, 5.0), (6.0, 10.0), (12.0, 20.0)])
    found = Beside(lambda: None)
    assert found.ratios(lambda: next(took)) == [3.0, 5.0]
    assert found.unit == 2.0


def times_with(monkeypatch: pytest.MonkeyPatch, meetings: list[float]) -> list[float]:
    """Ratios where every run takes as many units as there were runs before it."""
    reference_takes(monkeypatch, *[1.0] * 50)
    runs: Any = iter(range(50))
    return Beside(lambda: None, Meetings(iter(meetings))).ratios(lambda: [next(runs)])  # type: ignore[arg-type]


def test_what_runs_while_workers_are_apart_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert times_with(monkeypatch, [1.0] * 2 * FEWEST) == [1.0]
    assert times_with(monkeypatch, [1.0, 1.1, 9.0, 9.0, 1.0, 9.0, 1.0, 1.5, 1.0, 1.0]) == [3.0]  # of 0, 3 and 4


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "PATIENCE", 0.0)
    assert times_with(monkeypatch, [1.0, 9.0] * FEWEST) == [1.0]
