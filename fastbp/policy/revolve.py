"""revolve(slots): binomial checkpointing of the chain of blocks, all of which are taken to cost the same.

At most `slots` inputs of blocks are kept at any time, the first block's among them, besides the one of the block that
is being walked. Reversing l blocks with s slots runs

    t(l, s) = r·l − C(s + r, s + 1)     where C(s + r − 1, s) < l ≤ C(s + r, s)

blocks forward on the way from one input to another, the first pass among them; no other way needs fewer. The last
block's own run, which leads to the loss, is not counted. Source: Griewank and Walther 2000, algorithm 799.
"""

from __future__ import annotations

from math import comb

from fastbp.schedule.reversal import Reversal, Split


def advances(blocks: int, slots: int) -> int:
    """t(blocks, slots), for at least one of each."""
    repeats = 0
    while comb(slots + repeats, slots) < blocks:
        repeats += 1
    return repeats * blocks - comb(slots + repeats, slots + 1)


def revolve(blocks: int, slots: int, start: int = 0) -> Reversal:
    """The reversal of so many blocks from `start` on, whose input holds one of the slots."""
    if blocks == 1:
        return start
    ahead = blocks - 1 if slots == 1 else min(range(1, blocks), key=lambda ahead: _advances(blocks, ahead, slots))
    return Split(revolve(ahead, slots, start), revolve(blocks - ahead, max(slots - 1, 1), start + ahead))


def _advances(blocks: int, ahead: int, slots: int) -> int:
    """t where the next slot holds the input `ahead` blocks on."""
    return ahead + advances(blocks - ahead, slots - 1) + advances(ahead, slots)
