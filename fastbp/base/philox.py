"""Philox4x32-7: four random words as a function of a counter and a key.

    c0·0xD2511F53 = 2³²·a + b,  c2·0xCD9E8D57 = 2³²·e + f                                one round
    c ← (e ^ c1 ^ k0, f, a ^ c3 ^ k1, b);  k ← k + (0x9E3779B9, 0xBB67AE85)

Every bit of the counter and the key moves every bit of the result, so counters may be small and close together. Seven
rounds are the fewest that pass BigCrush; ten, which libraries take, leave a margin that a mask does not need and would
cost 40 % more. Multiplications of 32 bits and no state: a vector computes as many counters as it has lanes. The twins
are fastbp/_dropout.h and fastbp/simd/dropout.py.
Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, table 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUNDS = 7
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORDS = 4
"""Words of a result."""
LOW = 0xFFFFFFFF


def philox(counter: Sequence[Any], key: Sequence[int], rounds: int = ROUNDS) -> list[NDArray[np.uint64]]:
    """The four words of a counter of four words and a key of two, all below 2³²; words of the counter may be arrays
    that broadcast."""
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) for word in counter)
    k0, k1 = (np.uint64(word) for word in key)
    low, half = np.uint64(LOW), np.uint64(32)
    for _ in range(rounds):
        first, second = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (second >> half) ^ c1 ^ k0, second & low, (first >> half) ^ c3 ^ k1, first & low
        k0, k1 = (k0 + np.uint64(KEY_STEPS[0])) & low, (k1 + np.uint64(KEY_STEPS[1])) & low
    return [c0, c1, c2, c3]
