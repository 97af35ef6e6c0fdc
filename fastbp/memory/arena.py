"""The arena: one block of memory in which every activation, gradient and scratch buffer has its place.

It measures what a run touched: before the run every byte holds a pattern, and what differs afterwards was written. A
guard behind the arena shows a kernel that writes past its end.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fastbp.schedule.simulate import ALIGNMENT

GUARD_BYTES = 4096
PATTERN = 0xA5
_SEARCH_BYTES = 1 << 22


def aligned_bytes(size: int) -> np.ndarray:
    """Uninitialised bytes that begin on a cache line. NumPy asks Linux for huge pages where they are 4 MiB or more; to
    begin on one as well changed no update's time by more than a percent either way.
    """
    block = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + size]


class Arena:
    """`size_bytes` of memory, a multiple of a cache line, and a guard."""

    def __init__(self, size_bytes: int) -> None:
        if size_bytes % ALIGNMENT:
            raise ValueError(f"an arena of {size_bytes} bytes is no multiple of {ALIGNMENT}")
        self.size_bytes = size_bytes
        self._memory = aligned_bytes(size_bytes + GUARD_BYTES)
        self.mark()

    @property
    def address(self) -> int:
        return int(self._memory.ctypes.data)

    def view(self, offset: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """The array at `offset` bytes."""
        return np.ndarray(shape, dtype, buffer=self._memory, offset=offset)

    def mark(self, pattern: int = PATTERN) -> None:
        """Fills everything with a pattern, so that the next run shows what it touches."""
        self._pattern = pattern
        self._memory[:] = pattern

    def touched(self, offset: int, size: int) -> bool:
        """Whether any of `size` bytes from `offset` was written since `mark`."""
        return bool((self._memory[offset : offset + size] != self._pattern).any())

    def last_touched(self) -> int:
        """Bytes up to and with the last cache line that was written since `mark`; more than the size if the guard
        was hit.
        """
        end = len(self._memory)
        while end > 0:
            start = max(0, end - _SEARCH_BYTES)
            changed = np.flatnonzero(self._memory[start:end] != self._pattern)
            if changed.size:
                return (start + int(changed[-1])) // ALIGNMENT * ALIGNMENT + ALIGNMENT
            end = start
        return 0

    def high_water_bytes(self, places: Iterable[tuple[int, int]]) -> int:
        """The end of the highest of `places` (offset, size) that was written to since `mark`, or of any stray write
        above.
        """
        for offset, size in sorted(places, key=lambda place: -sum(place)):
            if self.touched(offset, size):
                return max(offset + size, self.last_touched())
        return self.last_touched()
