"""The generator gives the words that its authors publish."""

from __future__ import annotations

import numpy as np
import pytest

from fastbp.base.philox import philox

KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
"""Counter, key and words of philox4x32 with ten rounds: Random123, tests/kat_vectors."""


def _words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    assert [int(word) for word in philox(_words(counter), _words(key), rounds=10)] == _words(expected)


def test_seven_rounds_are_the_start_of_ten() -> None:
    """Three more rounds, under the key as it is by then, make ten of them."""
    counter, key = _words(KNOWN[2][0]), _words(KNOWN[2][1])
    later = [(k + 7 * step) % 2**32 for k, step in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)]
    assert [int(word) for word in philox(philox(counter, key), later, rounds=3)] == _words(KNOWN[2][2])


def test_counters_may_be_arrays() -> None:
    rows, columns = np.arange(3)[:, None], np.arange(5)
    words = philox((columns, rows, 7, 0), (1, 2))
    assert all(word.shape == (3, 5) for word in words)
    assert [int(word[2, 4]) for word in words] == [int(word) for word in philox((4, 2, 7, 0), (1, 2))]
