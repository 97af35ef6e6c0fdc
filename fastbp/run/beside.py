"""Times on a machine that others use too: each in ratio to a reference that runs right before it.

A clock rate or a neighbour that comes and goes changes both. What it does not change alike is told by how long the
workers take to meet (docs/decisions/0016): while that is far above the least that was seen, samples do not count, as
long as patience lasts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from fastbp.run.barrier import APART, Barrier
from fastbp.run.measure import seconds_of

FEWEST, MOST, SECONDS = 3, 20, 0.5
"""Samples that count, and how long more than the fewest of them are taken."""
PATIENCE, PAUSE = 6.0, 0.1
"""Seconds that may be spent on waiting for them, in all; and between two tries."""


class Beside:
    """Medians of what `run` gives, in units of the reference; `unit` is the reference's seconds."""

    def __init__(self, reference: Callable[[], object], barrier: Barrier | None = None) -> None:
        self._reference, self._barrier = reference, barrier
        self._least, self._patience = float("inf"), PATIENCE
        self._units: list[float] = []
        reference()

    @property
    def unit(self) -> float:
        return statistics.median(self._units)

    def ratios(self, run: Callable[[], Sequence[float]]) -> list[float]:
        """The medians over samples, for each of the seconds that a run gives."""
        samples: list[list[float]] = []
        begin = time.perf_counter()
        while len(samples) < FEWEST or (len(samples) < MOST and time.perf_counter() - begin < SECONDS):
            start, met = time.perf_counter(), self._meeting()
            unit, found = seconds_of(self._reference), run()
            if max(met, self._meeting()) > APART * self._least and self._patience > 0:
                time.sleep(PAUSE)
                self._patience -= time.perf_counter() - start
                continue
            self._units.append(unit)
            samples.append([each / unit for each in found])
        return [statistics.median(each) for each in zip(*samples, strict=True)]

    def _meeting(self) -> float:
        met = self._barrier.measure(1) if self._barrier else 0.0
        self._least = min(self._least, met)
        return met
