"""Every schedule at its corners: the first update, the end of warm-up, the last update and beyond."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from fastbp.base.errors import InputError
from fastbp.train.learning_rate import SCHEDULES, LearningRate


def rate(schedule: str = "cosine", **changes: Any) -> LearningRate:
    values: dict[str, Any] = {"peak": 1e-3, "minimum": 1e-4, "warmup": 10, "updates": 100} | changes
    return LearningRate(schedule, **values)


def all_rates(schedule: LearningRate) -> list[float]:
    return [schedule.at(update) for update in range(schedule.updates)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warm_up_is_a_straight_line_that_begins_above_zero_and_ends_at_the_peak(schedule: str) -> None:
    rates = all_rates(rate(schedule))
    assert rates[:10] == pytest.approx([1e-4 * k for k in range(1, 11)], rel=1e-12)
    assert rates[9] == 1e-3


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("warmup", [0, 1, 10, 99])
def test_decay_runs_from_the_peak_to_the_minimum_at_the_last_update(schedule: str, warmup: int) -> None:
    rates = all_rates(rate(schedule, warmup=warmup))
    decaying = rates[max(warmup - 1, 0) :]
    assert decaying[0] == 1e-3
    assert decaying[-1] == 1e-4
    assert all(after < before for before, after in pairwise(decaying))


def test_linear_and_cosine_meet_at_the_ends_and_halfway() -> None:
    linear, cosine = rate("linear", warmup=0, updates=101), rate("cosine", warmup=0, updates=101)
    assert linear.at(50) == pytest.approx(5.5e-4, rel=1e-12)
    assert cosine.at(50) == pytest.approx(5.5e-4, rel=1e-12)
    assert linear.at(25) == pytest.approx(7.75e-4, rel=1e-12)
    assert cosine.at(25) == pytest.approx(1e-4 + 9e-4 * (1 + math.sqrt(0.5)) / 2, rel=1e-12)


def test_constant_stays_at_the_peak() -> None:
    assert set(all_rates(rate("constant"))[9:]) == {1e-3}


@pytest.mark.parametrize(("share", "stable"), [(0.2, 80), (0.0, 100), (0.001, 99), (1.0, 10), (0.95, 10)])
def test_wsd_stays_at_the_peak_until_its_decay(share: float, stable: int) -> None:
    rates = all_rates(rate("wsd", decay_share=share))
    assert set(rates[9:stable]) == {1e-3}
    assert rates[stable - 1 :] == pytest.approx(
        [1e-3 - 9e-4 * k / max(100 - stable, 1) for k in range(101 - stable)], rel=1e-12
    )
    assert rates[-1] == (1e-3 if stable == 100 else 1e-4)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("updates", [1, 2, 3])
def test_the_shortest_runs(schedule: str, updates: int) -> None:
    for warmup in range(updates + 1):
        rates = all_rates(rate(schedule, warmup=warmup, updates=updates))
        assert all(1e-4 <= value <= 1e-3 for value in rates)
        assert max(rates) == 1e-3


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 10, 100])
def test_past_the_last_update_nothing_changes_any_more(schedule: str, warmup: int) -> None:
    tried = rate(schedule, warmup=warmup)
    assert tried.at(100) == tried.at(99) == tried.at(10**9)


def test_a_rate_of_zero_is_allowed() -> None:
    assert set(all_rates(rate("linear", peak=0.0, minimum=0.0))) == {0.0}


@pytest.mark.parametrize(
    ("schedule", "changes", "parts"),
    [
        ("cosin", {}, ["'cosin'", "did you mean 'cosine'", "wsd"]),
        ("cosine", {"peak": -1.0}, ["learning rate is -1.0"]),
        ("cosine", {"peak": math.nan}, ["learning rate is nan"]),
        ("cosine", {"peak": math.inf}, ["learning rate is inf"]),
        ("cosine", {"minimum": math.nan}, ["minimum learning rate is nan"]),
        ("cosine", {"minimum": -1e-9}, ["minimum learning rate is -1e-09"]),
        ("cosine", {"minimum": 2e-3}, ["0.002", "above", "0.001", "--min-lr"]),
        ("cosine", {"warmup": 101}, ["101", "100", "--warmup", "--steps"]),
        ("cosine", {"warmup": -1}, ["-1", "--warmup"]),
        ("cosine", {"updates": 0, "warmup": 0}, ["updates are 0"]),
        ("wsd", {"decay_share": 1.5}, ["decay share is 1.5"]),
        ("wsd", {"decay_share": -0.1}, ["decay share is -0.1"]),
        ("wsd", {"decay_share": math.nan}, ["decay share is nan"]),
    ],
)
def test_what_makes_no_schedule_is_refused(schedule: str, changes: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        rate(schedule, **changes)
    for part in parts:
        assert part in str(caught.value)


def test_a_negative_update_is_refused() -> None:
    with pytest.raises(InputError, match="update is -1"):
        rate().at(-1)
