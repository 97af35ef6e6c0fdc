"""Times on a machine that moves the workers' cores: runs take turns, and only times of one place are put together.

A hypervisor may have the cores share a cache in one second and not in the next, and what goes from core to core then
takes several times as long (docs/decisions/0016, 0021). How long the workers take to meet tells where they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from fastbp.base.late import Late
from fastbp.run.measure import there_and_back
from fastbp.run.workers import Workers

Barrier = Late("fastbp.run.barrier", "Barrier")  # imports Numba

NEAR, APART = "near", "apart"
"""Where the workers' cores are: they share a cache, or they do not."""
NEAR_SECONDS = 75e-9
"""A worker's part of a meeting takes no longer where they are near. Two took 0.03 to 0.1 µs so, 0.27 to 0.45 apart."""
FEWEST, MOST, SECONDS = 6, 20, 4.0
"""Results of each run from one place: as many as take so long, within bounds."""
ROUNDS = 5
"""In which they are to come, in multiples of that."""
PATIENCE, PAUSE = 60.0, 0.1
"""Seconds that a place is waited for, in all, and between two looks."""

Found = TypeVar("Found")


class Moved(Exception):
    """The workers' cores were not in the place that was asked for, for all of PATIENCE."""


def place_of(meeting_seconds: float, workers: int) -> str:
    """NEAR or APART, by what a meeting of so many took."""
    return NEAR if meeting_seconds <= NEAR_SECONDS * workers else APART


class Places:
    """Where the cores of a team are. Of one worker, or where kernels are not compiled, they are NEAR.

    `meetings` are the seconds of all the looks.
    """

    def __init__(self, team: Workers, compiled: bool = True) -> None:
        self._workers = team.count
        self._barrier = Barrier(team) if compiled and team.count > 1 else None
        self.meetings: list[float] = []

    def look(self) -> str:
        """NEAR or APART."""
        if self._barrier is None:
            return NEAR
        self.meetings.append(self._barrier.measure(2))
        return place_of(self.meetings[-1], self._workers)

    def in_turn(
        self, runs: Sequence[Callable[[str], Found]], wanted: str | None = None
    ) -> tuple[str, list[list[Found]]]:
        """What the runs, which are told the place, gave in `wanted`, or in the place in which all had given enough
        first. A run during which the cores were moved is lost, unless ROUNDS have passed: then all count. Raises Moved.
        """
        found: dict[str, list[list[Found]]] = {place: [[] for _ in runs] for place in (NEAR, APART)}
        places = (wanted,) if wanted else (NEAR, APART)
        waited, rounds, enough, begin = 0.0, 0, MOST, time.perf_counter()
        while rounds < ROUNDS * enough:
            for i in there_and_back(range(len(runs)), rounds):
                while (place := self.look()) not in places:
                    waited += _pause(PATIENCE - waited)
                result = runs[i](place)
                if self.look() == place:
                    found[place][i].append(result)
            rounds += 1
            if rounds == 1:
                a_run = (time.perf_counter() - begin - waited) / len(runs)
                enough = min(MOST, max(FEWEST, round(SECONDS / a_run)))
            for place in places:
                if min(map(len, found[place])) >= enough:
                    return place, found[place]
        place = max(places, key=lambda place: sum(map(len, found[place])))
        both = [near + apart for near, apart in zip(found[NEAR], found[APART], strict=True)]
        return place, [results or [run(place)] for results, run in zip(both, runs, strict=True)]


def _pause(patience: float) -> float:
    if patience <= 0:
        raise Moved
    start = time.perf_counter()
    time.sleep(PAUSE)
    return time.perf_counter() - start
