"""The machine's limits, measured again and again beside what is judged by them."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from fastbp.run.bandwidth import MemoryBandwidth
from fastbp.run.barrier import Barrier, wake_up
from fastbp.run.fma_peak import FmaPeak
from fastbp.run.workers import Workers


class Limits:
    """The FMA peak of one worker and of a team, how long it takes to meet, and the bandwidth of its memory. Remembers
    every measurement."""

    def __init__(self, team: Workers, dtype: str = "float32") -> None:
        self._team, self.workers = team, team.count
        self._fma_peaks = {1: FmaPeak(1, dtype), team.count: FmaPeak(team.count, dtype, team)}
        self.gflops: dict[int, list[float]] = defaultdict(list)
        self.gb_per_second: list[float] = []
        self.barriers: list[float] = []

    @cached_property
    def _barrier(self) -> Barrier:
        return Barrier(self._team)

    @cached_property
    def _memory(self) -> MemoryBandwidth:
        return MemoryBandwidth(self._team)

    def peak(self, workers: int | None = None) -> float:
        """GFLOP/s of one worker, or of all where no number is given, now. It takes some 20 ms: threads that have rested
        may wake on one core, and the system moves them apart only after a few.
        """
        count = workers or self.workers
        self.gflops[count].append(self._fma_peaks[count].measure(repeats=20))
        return self.gflops[count][-1]

    def barrier(self) -> float:
        """Seconds that all workers need to meet, now."""
        self.barriers.append(self._barrier.measure())
        return self.barriers[-1]

    def wake_up(self) -> float:
        """Seconds that a program costs beside its calls, now."""
        return wake_up(self._team)

    def bandwidth(self) -> float:
        """GB/s of all workers, now."""
        self.gb_per_second.append(self._memory.measure())
        return self.gb_per_second[-1]

    def forget_arrays(self) -> None:
        """Gives back the memory that bandwidth is measured with."""
        self.__dict__.pop("_memory", None)
