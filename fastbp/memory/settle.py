"""Moves buffers of a layout to where others of their kind lie: no byte more, and fewer places for what comes again.

The slices of a tensor come one after another, and so do the weights that products pack. Where an address has the rows
of one worker now and those of another next, the line has to go from core to core (docs/decisions/0022).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fastbp.memory.layout import Layout, lifetimes
from fastbp.schedule.simulate import Buffer

HOMES, PASSES = 4, 3
"""Offsets of a kind that are tried, those of the most bytes first; and how often, since what moves makes room."""


def settle(layout: Layout) -> Layout:
    """The layout with what is not kept moved to its kind's homes, where those are free for its whole lifetime. Its size
    stays; where nothing would reach the end any more, all stays.
    """
    places = _Places(layout)
    kinds = _kinds(layout.buffers)
    for _ in range(PASSES):
        if not sum(places.move(buffers) for buffers in kinds.values()):
            break
    return replace(layout, offsets=tuple(places.offsets.tolist())) if places.filled else layout


def _kinds(buffers: Sequence[Buffer]) -> Mapping[str, list[int]]:
    """The indices of buffers by what they hold, whatever the block and the rows; those with the most bytes first."""
    found: dict[str, list[int]] = defaultdict(list)
    for i, buffer in enumerate(buffers):
        if buffer.category != "kept":
            scratch = buffer.category == "scratch"
            found["scratch" if scratch else re.sub(r"blocks\.\d+\.|\[.*?\]", "", buffer.names[0])].append(i)
    return dict(sorted(found.items(), key=lambda kind: -sum(buffers[i].nbytes for i in kind[1])))


class _Places:
    """Where buffers lie. `offsets` (n) int64 bytes."""

    def __init__(self, layout: Layout) -> None:
        self.offsets = np.array(layout.offsets, np.int64)
        self._end = layout.size_bytes
        self._born, self._dies, self._sizes = lifetimes(layout.buffers)

    @property
    def filled(self) -> bool:
        """Whether a buffer ends where the arena does."""
        return bool((self.offsets + self._sizes).max(initial=0) == self._end)

    def move(self, buffers: Iterable[int]) -> int:
        """Moves those that can be moved to one of the kind's homes, and says how many."""
        bytes_at: Counter[int] = Counter()
        for i in buffers:
            bytes_at[int(self.offsets[i])] += int(self._sizes[i])
        homes = [home for home, _ in bytes_at.most_common(HOMES)]
        return sum(self._move(i, homes) for i in buffers)

    def _move(self, i: int, homes: Sequence[int]) -> bool:
        together = np.flatnonzero((self._born < self._dies[i]) & (self._born[i] < self._dies))
        together = together[together != i]
        begins = self.offsets[together]
        ends = begins + self._sizes[together]
        for home in homes:
            if home == self.offsets[i]:
                return False
            end = home + self._sizes[i]
            if end <= self._end and not ((begins < end) & (home < ends)).any():
                self.offsets[i] = home
                return True
        return False
