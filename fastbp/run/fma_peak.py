"""Measures the FMA limit of the workers, with their own threads and loop."""

from __future__ import annotations

import time

import numpy as np
from numba import cfunc

from fastbp.run._loop import Instructions
from fastbp.run.workers import Workers
from fastbp.simd.abi import KERNEL
from fastbp.simd.fma_peak import flops, numba_fma_peak

ROUNDS = 400_000
"""About 1 ms: short enough that a busy neighbour spoils few of the repeats."""


class FmaPeak:
    """`measure()` gives GFLOP/s of all workers together; the best of a few repeats, since nothing makes it faster.

    Give the team that does what is measured beside it: another one's threads would still spin when that begins.
    """

    def __init__(self, workers: int, dtype: str = "float32", team: Workers | None = None) -> None:
        self._workers = team or Workers(workers)
        self._results = np.zeros(64, dtype)
        self._kernel = cfunc(KERNEL[dtype])(numba_fma_peak)
        row = np.array([[ROUNDS, self._results.ctypes.data]], np.int64)
        self._program = Instructions(np.array([self._kernel.address], np.int64), row)
        self._flops = workers * flops(ROUNDS, self._results.itemsize)

    def measure(self, repeats: int = 9) -> float:
        """GFLOP/s."""
        best = float("inf")
        for _ in range(repeats + 1):
            start = time.perf_counter()
            self._workers.run(self._program)
            best = min(best, time.perf_counter() - start)
        return self._flops / best / 1e9
