"""Turns are fair, and a spread is a median with its range."""

from __future__ import annotations

from itertools import count

import pytest

from fastbp.run import measure
from fastbp.run.measure import TURN, Spread, in_turn, one_turn, seconds_of, undisturbed


def test_a_spread() -> None:
    assert Spread.of([3.0, 1.0, 2.0, 9.0]) == Spread(2.5, 1.0, 9.0)
    assert Spread.of([3.0]).range == [3.0, 3.0]


def test_what_others_do_to_some_of_the_runs_is_left_out() -> None:
    assert undisturbed([7.0]) == 7.0
    assert undisturbed([9.0, 1.1, 8.0, 1.0]) == 1.1
    assert undisturbed(reversed(range(8))) == 2


def test_turns_go_forwards_and_backwards() -> None:
    assert list(in_turn("abc", seconds=0, least=3)) == list("abccbaabc")


def test_turns_last_as_long_as_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    monkeypatch.setattr(measure.time, "perf_counter", lambda: float(next(ticks)))
    # The clock moves by one second at the start and at the end of every round behind the least.
    assert len(list(in_turn("ab", seconds=3, least=1))) == 2 * 3


def test_the_first_run_of_a_turn_is_not_counted() -> None:
    runs = []
    assert len(one_turn(lambda: runs.append(1), last_seconds=0.1)) == TURN - 1
    assert len(runs) == TURN
    assert len(one_turn(lambda: runs.append(1), last_seconds=1.1)) == 1
    assert len(runs) == TURN + 1


def test_seconds_are_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([5.0, 7.5])
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(times))
    assert seconds_of(lambda: None) == 2.5
