"""In what order blocks are walked backward, and which of their inputs are brought back when: a tree over the blocks.

A leaf is a block, walked backward from its input. A split has two parts, one behind the other: the input of the later
part is brought back from the earlier part's, by running the earlier part forward, whose own inputs are forgotten on the
way; the later part is reversed, its input is forgotten, and the earlier part is reversed. On the way down the later
parts nothing is run again: forward has kept their inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Split:
    """`whole` says that the earlier part is one block, all of whose tensors stay when it is run for the later one."""

    earlier: Reversal
    later: Reversal
    whole: bool = False


Reversal = int | Split


def first_block(reversal: Reversal) -> int:
    """The first block of a part: the one whose input there must be."""
    while isinstance(reversal, Split):
        reversal = reversal.earlier
    return reversal


def from_forward(reversal: Reversal) -> Iterator[int]:
    """The blocks whose inputs forward keeps."""
    while isinstance(reversal, Split):
        yield first_block(reversal)
        reversal = reversal.later
    yield reversal
