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


def interleave(contenders: Mapping[str, Callable[[], object]], seconds: float, least: int = 5) -> dict[str, Times]:
    """Runs every contender in turn until `seconds` have passed for each on average, at least `least` times."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    names = list(contenders)
    begin = time.perf_counter()
    rounds = 0
    while rounds < least or time.perf_counter() - begin < seconds * len(names):
        for name in names if rounds % 2 == 0 else reversed(names):
            start = time.perf_counter()
            contenders[name]()
            taken[name].append(time.perf_counter() - start)
        rounds += 1
    return {name: Times(tuple(values)) for name, values in taken.items()}
