"""The resident memory that an update adds at its peak, as the system counts it; Linux with glibc alone can say."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterable

import numpy as np

from fastbp.run.resident import forget_rss_peak, rss_peak_bytes


def step_rss_bytes(update: Callable[[], object], idle: Iterable[np.ndarray]) -> int | None:
    """Bytes that `update` adds, once what is free has gone back to the system, and with it the pages of `idle`, arrays
    whose contents nobody needs. None where the system does not tell.
    """
    try:
        libc = ctypes.CDLL(None)
        for array in idle:
            give_back(libc, array)
    except (OSError, AttributeError):
        return None
    if not forget_rss_peak():
        return None
    before = rss_peak_bytes()
    update()
    return rss_peak_bytes() - before


def give_back(libc: ctypes.CDLL, array: np.ndarray) -> None:
    """Frees the whole pages within `array`; they are zero when they are next read."""
    page = mmap.PAGESIZE
    start = -(-array.ctypes.data // page) * page
    end = (array.ctypes.data + array.nbytes) // page * page
    if end > start:
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)
