"""Limits remember what they measured."""

from __future__ import annotations

import pytest

from fastbp.run import bandwidth
from fastbp.run.limits import Limits
from fastbp.run.workers import Workers


def test_every_measurement_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "triad_bytes", lambda: 12 << 10)
    limits = Limits(Workers(2))
    found = [limits.peak(), limits.peak(1), limits.peak(2)]
    assert limits.gflops == {2: [found[0], found[2]], 1: [found[1]]}
    assert all(value > 0 for value in found)
    assert [limits.bandwidth(), limits.bandwidth()] == limits.gb_per_second


def test_the_arrays_are_made_when_they_are_needed_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Memory:
        def __init__(self, team: Workers) -> None:
            made.append(team.count)

        def measure(self) -> float:
            return 1.0

    monkeypatch.setattr("fastbp.run.limits.MemoryBandwidth", Memory)
    limits = Limits(Workers(1))
    limits.forget_arrays()
    assert made == []
    limits.bandwidth()
    limits.bandwidth()
    assert made == [1]
    limits.forget_arrays()
    limits.bandwidth()
    assert made == [1, 1]


def test_a_program_costs_something_beside_its_calls() -> None:
    assert Limits(Workers(1)).wake_up() > 0
