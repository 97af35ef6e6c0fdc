"""Measures the memory's limit with the workers' own threads and loop: a triad over arrays that no cache holds."""

from __future__ import annotations

import time

import numpy as np
from numba import cfunc

from fastbp.memory.arena import aligned_bytes
from fastbp.run._loop import Instructions
from fastbp.run.cpu_caches import cpu_caches
from fastbp.run.fit import available_bytes
from fastbp.run.workers import Workers
from fastbp.simd.abi import KERNEL
from fastbp.simd.triad import bytes_moved, numba_triad

LEAST_BYTES, MOST_BYTES = 96 << 20, 960 << 20
"""Of the three arrays together. A server's last cache is shared by more than this program may ever see of it."""


def triad_bytes() -> int:
    """Twice the largest cache, within bounds and within a quarter of the memory that is free."""
    wanted = min(max(2 * max(cpu_caches().values(), default=0), LEAST_BYTES), MOST_BYTES)
    return max(1 << 20, min(wanted, available_bytes() // 4))


class MemoryBandwidth:
    """`measure()` gives GB/s of all workers together."""

    def __init__(self, team: Workers) -> None:
        self._workers = team
        size = triad_bytes() // 12
        self._arrays = [aligned_bytes(4 * size).view(np.float32) for _ in range(3)]
        for array in self._arrays:
            array.fill(1)
        self._kernel = cfunc(KERNEL["float32"])(numba_triad)
        row = np.array([[size, *(array.ctypes.data for array in self._arrays)]], np.int64)
        self._program = Instructions(np.array([self._kernel.address], np.int64), row)
        self._bytes = bytes_moved(size, 4)

    def measure(self, repeats: int = 1) -> float:
        """The best of some repeats."""
        best = float("inf")
        for _ in range(repeats):
            start = time.perf_counter()
            self._workers.run(self._program)
            best = min(best, time.perf_counter() - start)
        return self._bytes / best / 1e9
