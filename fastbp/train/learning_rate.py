"""The learning rate as a pure function of the update, so that a resumed run goes on where it was.

    warm-up    peak · (u + 1)/warmup                     for u < warmup: the first is not 0, the last is the peak
    cosine     share(u) = (1 + cos π·x)/2                x runs from 0 at the end of warm-up to 1 at the last update
    linear     share(u) = 1 − x
    constant   share(u) = 1
    wsd        share(u) = 1, then down to 0 in a straight line over the last `decay_share` of all updates

Behind warm-up the rate is peak·share + minimum·(1 − share); past the last update it stays as it is there.
Sources: Loshchilov and Hutter 2017 (cosine), Hu et al. 2024, MiniCPM (warm-up, stable, decay).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastbp.base.errors import InputError, nearest

SCHEDULES = ("cosine", "linear", "constant", "wsd")


def usual_minimum(peak: float) -> float:
    """The rate at the end of a run where none is asked for."""
    return peak / 10


def usual_warmup(updates: int) -> int:
    """Updates of warm-up where none are asked for."""
    return min(100, updates // 10)


@dataclass(frozen=True)
class LearningRate:
    """The schedule of one run of `updates` updates; `at(update)` is the rate of update 0, 1, …

    Raises InputError for an unknown schedule, for rates that are negative, not finite or in the wrong order, and for a
    warm-up or a decay that does not fit into the run.
    """

    schedule: str
    peak: float
    minimum: float
    warmup: int
    updates: int
    decay_share: float = 0.2

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            near = nearest(self.schedule, SCHEDULES)
            raise InputError(f"schedule {self.schedule!r} is unknown{near}: choose one of {', '.join(SCHEDULES)}")
        for name, value in (("learning rate", self.peak), ("minimum learning rate", self.minimum)):
            if not 0 <= value < math.inf:
                raise InputError(f"{name} is {value}: give a finite number of at least 0, such as 1e-3")
        if self.minimum > self.peak:
            raise InputError(
                f"minimum learning rate {self.minimum} is above the learning rate {self.peak}: give a lower --min-lr"
            )
        if self.updates < 1:
            raise InputError(f"updates are {self.updates}: give at least 1")
        if not 0 <= self.warmup <= self.updates:
            raise InputError(
                f"warm-up of {self.warmup} updates does not fit into a run of {self.updates}: "
                f"give --warmup from 0 to {self.updates}, or more --steps"
            )
        if not 0 <= self.decay_share <= 1:
            raise InputError(f"decay share is {self.decay_share}: give the part of the run that decays, from 0 to 1")

    def at(self, update: int) -> float:
        """The rate of `update`, counted from 0. Raises InputError for a negative one."""
        if update < 0:
            raise InputError(f"update is {update}: updates are counted from 0")
        if update < self.warmup:
            return self.peak * ((update + 1) / self.warmup)
        share = self._share(min(update, self.updates - 1))
        return self.peak * share + self.minimum * (1 - share)

    def _share(self, update: int) -> float:
        """How far above the minimum the rate is: 1 at the peak, 0 at the minimum."""
        last, at_peak = self.updates - 1, max(self.warmup - 1, 0)
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "wsd":
            decaying = max(1, round(self.decay_share * self.updates)) if self.decay_share > 0 else 0
            at_peak = max(at_peak, last - decaying)
        if update <= at_peak:
            return 1.0
        done = (update - at_peak) / (last - at_peak)
        return (1 + math.cos(math.pi * done)) / 2 if self.schedule == "cosine" else 1 - done


def usual_rate(peak: float, updates: int) -> LearningRate:
    """Warm-up and cosine, as `fastbp train` has them."""
    return LearningRate("cosine", peak, usual_minimum(peak), usual_warmup(updates), updates)
