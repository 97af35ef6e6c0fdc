"""Runs take turns, and what they give counts for one place of the workers' cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat

import pytest

from fastbp.run import places
from fastbp.run.barrier import Barrier
from fastbp.run.places import APART, FEWEST, NEAR, NEAR_SECONDS, ROUNDS, Moved, Places, place_of
from fastbp.run.workers import Workers


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "SECONDS", 0.0)
    monkeypatch.setattr(places, "PAUSE", 0.0)


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterator[str]], Places]:
    """Cores that are where it is told, look by look."""

    def somewhere(looks: Iterator[str]) -> Places:
        seconds = {NEAR: 2 * NEAR_SECONDS, APART: 3 * NEAR_SECONDS}
        monkeypatch.setattr(Barrier, "measure", lambda barrier, repeats: seconds[next(looks)])
        return Places(Workers(2))

    return somewhere


def counted(count: int) -> list[Callable[[str], tuple[str, int]]]:
    """Runs that give the place that they were told, and how many ran before."""
    ran = iter(range(1 << 20))
    return [lambda place: (place, next(ran))] * count


def test_one_worker_is_near_itself() -> None:
    team = Places(Workers(1))
    assert (team.look(), team.meetings) == (NEAR, [])
    assert Places(Workers(2), compiled=False).look() == NEAR


def test_how_long_workers_take_to_meet_tells_where_they_are() -> None:
    assert [place_of(each * NEAR_SECONDS, 3) for each in (2.0, 3.0, 3.1)] == [NEAR, NEAR, APART]


def test_there_and_back_until_each_has_enough(met: Callable[[Iterator[str]], Places]) -> None:
    place, found = met(repeat(APART)).in_turn(counted(2))
    assert place == APART
    assert [[number for _, number in each][:4] for each in found] == [[0, 3, 4, 7], [1, 2, 5, 6]]
    assert list(map(len, found)) == [FEWEST] * 2
    assert {where for each in found for where, _ in each} == {APART}


def test_a_run_under_which_cores_were_moved_is_lost(met: Callable[[Iterator[str]], Places]) -> None:
    looks = chain([NEAR, NEAR, NEAR, APART, APART, APART], repeat(NEAR))
    place, (found,) = met(looks).in_turn(counted(1))
    assert (place, [number for _, number in found]) == (NEAR, [0, *range(3, FEWEST + 2)])


def test_a_place_that_is_wanted_is_waited_for(met: Callable[[Iterator[str]], Places]) -> None:
    place, (found,) = met(chain([APART] * 9, repeat(NEAR))).in_turn(counted(1), NEAR)
    assert (place, [number for _, number in found]) == (NEAR, list(range(FEWEST)))


def test_but_not_for_ever(met: Callable[[Iterator[str]], Places], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "PATIENCE", 0.0)
    with pytest.raises(Moved):
        met(repeat(APART)).in_turn(counted(1), NEAR)


def test_where_no_place_has_enough_all_that_was_found_counts(met: Callable[[Iterator[str]], Places]) -> None:
    looks = chain.from_iterable(repeat([NEAR, NEAR, NEAR, APART, APART, APART, APART, NEAR]))
    place, (found,) = met(looks).in_turn(counted(1))
    assert place == NEAR
    assert FEWEST <= len(found) <= ROUNDS * FEWEST
    looks = chain.from_iterable(repeat([NEAR, APART]))
    _, (found,) = met(looks).in_turn(counted(1))
    assert len(found) == 1, "there is always a result"
