"""Resident memory of a process, code and libraries included."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import numpy as np
import psutil

CLEAR_REFS = Path("/proc/self/clear_refs")


def rss_peak_bytes(process: int | None = None) -> int:
    """The most that a process (this one, where none is named) has had; where the system does not tell, what it has."""
    try:
        lines = Path(f"/proc/{process or 'self'}/status").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return int(psutil.Process(process).memory_info().rss)


def forget_rss_peak() -> bool:
    """Gives memory that is free back to the system and makes the system forget this process's peak: from now on it is
    what is resident now. False where the system cannot: Linux with glibc alone can.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
        CLEAR_REFS.write_text("5")
    except (OSError, AttributeError):
        return False
    return True


def give_back(array: np.ndarray) -> bool:
    """Frees the whole pages within an array whose contents nobody needs; they are zero when they are next read. False
    where the system cannot.
    """
    start = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (array.ctypes.data + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    try:
        libc = ctypes.CDLL(None)
        if end > start:
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)
    except (OSError, AttributeError):
        return False
    return True
