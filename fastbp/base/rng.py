"""Random numbers as a function of (seed, purpose, counter), never of history.

A generator that is drawn from in order makes every number depend on all draws before it, so a
resumed run, or one that evaluates more often, would see other numbers. Philox is a function of a
key and a counter: asking for the numbers of update 7 needs nothing of updates 0 to 6.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import hashlib
import operator
from typing import Any

import numpy as np

from fastbp.base.errors import InputError

_WORD = 2**64
_COUNTER_WORDS = 3


def stream(seed: int, purpose: str, *counter: int) -> np.random.Generator:
    """Return the generator of `purpose` at `counter`, for example stream(0, "batches", 7, 0).

    Philox4x64-10 has a key of two words and a counter of four. The key is (seed, the 64-bit
    BLAKE2b hash of `purpose`). The generator itself counts in word 0 of the counter; `counter`
    fills words 1 to 3 (missing ones are 0), so that two streams stay apart for 2**64 blocks.

    The trap: `stream(s, p)` and `stream(s, p, 0)` are the same numbers, so one purpose always
    uses the same number of counter words.

    Raises InputError for a seed outside [0, 2**64) and ValueError for more than three counter
    words or one outside that range.
    """
    return Streams(seed, purpose).at(*counter)


class Streams:
    """All streams of one purpose. `at(7, 0)` gives the numbers of `stream(seed, purpose, 7, 0)` in half the time: there
    is one generator, which is put at the counter that is asked for. What was drawn before does not matter.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        key = np.array([require_seed(seed), _hash64(purpose)], dtype=np.uint64)
        self._philox = np.random.Philox(key=key)
        self._generator = np.random.Generator(self._philox)
        self._begin: Any = self._philox.state

    def at(self, *counter: int) -> np.random.Generator:
        """The generator at `counter`, until it is asked for another. Raises ValueError as `stream` does."""
        words = tuple(operator.index(word) for word in counter)
        if len(words) > _COUNTER_WORDS or not all(0 <= word < _WORD for word in words):
            raise ValueError(f"counter {words}: at most {_COUNTER_WORDS} words in [0, 2**64)")
        self._begin["state"]["counter"][:] = (0, *words, *(0,) * (_COUNTER_WORDS - len(words)))
        self._philox.state = self._begin
        return self._generator


def require_seed(seed: int) -> int:
    """Return `seed` as a Python int; InputError unless it fits one unsigned 64-bit word."""
    word = operator.index(seed)
    if not 0 <= word < _WORD:
        raise InputError(f"seed {word} is outside 0 to 2**64 - 1; choose one inside")
    return word


def _hash64(text: str) -> int:
    # Python's own hash() differs from process to process.
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
