"""Fair figures on a shared machine: what is compared takes turns, and a figure is a median with its range.

Clock rates and neighbours come and go, so a share of a limit is a median of shares, each taken of the limit as it was
right beside.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

Name = TypeVar("Name")


@dataclass(frozen=True)
class Spread:
    """A median and its range."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(statistics.median(values), min(values), max(values))

    @property
    def range(self) -> list[float]:
        return [self.low, self.high]


def there_and_back(names: Sequence[Name], rounds: int) -> Sequence[Name]:
    """The order of a round, behind so many others: every other one goes backwards."""
    return names if rounds % 2 == 0 else names[::-1]


def in_turn(names: Sequence[Name], seconds: float, least: int = 5) -> Iterator[Name]:
    """All names over and over, forwards and backwards, until `seconds` have passed since the first turn; each at least
    `least` times.
    """
    begin, rounds = time.perf_counter(), 0
    while rounds < least or time.perf_counter() - begin < seconds:
        yield from there_and_back(names, rounds)
        rounds += 1


def seconds_of(run: Callable[[], object]) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def undisturbed(seconds: Iterable[float]) -> float:
    """The lower quartile: what others do on the machine makes runs slower, and not always fewer than half of them."""
    found = sorted(seconds)
    return found[len(found) // 4]


TURN = 4
"""Runs in a turn; the first is not counted where there are more, since the threads of the one before may still spin."""


def one_turn(run: Callable[[], object], last_seconds: float) -> list[float]:
    """Seconds of the runs of a turn: TURN - 1 behind one that is not counted, or one where the last took over 1 s."""
    if last_seconds > 1:
        return [seconds_of(run)]
    run()
    return [seconds_of(run) for _ in range(TURN - 1)]
