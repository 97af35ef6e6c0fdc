"""Fair timing on a shared machine: contenders take turns, forwards and backwards; the median counts, the range is
shown.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """Seconds of one contender."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        low, middle, high = (1e3 * x for x in (min(self.seconds), self.median, max(self.seconds)))
        digits = 3 if middle < 10 else 1
        return f"{middle:.{digits}f} ms [{low:.{digits}f}-{high:.{digits}f}]"


TURN = 4
"""Runs in a turn; the first is not counted where there are more, since the threads of the one before may still spin."""


def interleave(contenders: Mapping[str, Callable[[], object]], seconds: float, least: int = 5) -> dict[str, Times]:
    """Contenders take turns until `seconds` have passed for each on average; each runs at least `least` times.

    A turn is TURN runs of which the first is not counted, or one run where a run takes longer than a second.
    """
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    single = {name: timed(run) > 1 for name, run in contenders.items()}
    names = list(contenders)
    begin = time.perf_counter()
    rounds = 0
    while min(map(len, taken.values())) < least or time.perf_counter() - begin < seconds * len(names):
        for name in names if rounds % 2 == 0 else reversed(names):
            if not single[name]:
                contenders[name]()
            taken[name] += [timed(contenders[name]) for _ in range(1 if single[name] else TURN - 1)]
        rounds += 1
    return {name: Times(tuple(values)) for name, values in taken.items()}


def timed(run: Callable[[], object]) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
