"""Measures how long workers take to meet: a program of kernels that do nothing.

It is how long a cache line takes from core to core, a few times over. Where a system puts two workers on cores that
share no cache, each waits longer for what the other has written, and a small model's update takes a third longer though
every core is as fast as before (docs/decisions/0016).
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import numpy as np
from numba import cfunc

from fastbp.run._loop import Instructions
from fastbp.run.workers import Workers
from fastbp.simd.abi import KERNEL

MEETINGS = 2000
"""Half a millisecond: long beside the wake-up that begins it."""


def _nothing(args: Any, worker: int, workers: int) -> None:
    pass


@cache
def _kernel() -> Any:
    return cfunc(KERNEL["float32"])(_nothing)


class Barrier:
    """`measure()` gives the seconds of one meeting of all workers; of a whole run where there is one in it."""

    def __init__(self, team: Workers, meetings: int = MEETINGS) -> None:
        self._team, self._meetings = team, meetings
        addresses = np.full(meetings, _kernel().address, np.int64)
        self._program = Instructions(addresses, np.zeros((meetings, 1), np.int64))

    def measure(self, repeats: int = 3) -> float:
        """The best of some repeats."""
        best = float("inf")
        for _ in range(repeats):
            start = time.perf_counter()
            self._team.run(self._program)
            best = min(best, time.perf_counter() - start)
        return best / self._meetings


def wake_up(team: Workers) -> float:
    """Seconds of a program of one call that does nothing: what a program costs beside its calls, at least."""
    return Barrier(team, meetings=1).measure(50)
