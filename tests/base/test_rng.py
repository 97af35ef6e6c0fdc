"""A stream is a function of seed, purpose and counter, the same in every process and version."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fastbp.base.errors import InputError
from fastbp.base.rng import Streams, require_seed, stream


def raw(seed: int, purpose: str, *counter: int) -> list[int]:
    bits = stream(seed, purpose, *counter).bit_generator
    assert isinstance(bits, np.random.Philox)
    return [int(word) for word in bits.random_raw(4)]


def test_the_numbers_never_change() -> None:
    # Written down from the first version: a run has to resume under a later one.
    assert raw(0, "batches", 7, 1)[:3] == [
        14835848338884612650,
        14362623345655229540,
        7354625353402429360,
    ]


def test_asking_again_gives_the_same_numbers_whatever_was_drawn_before() -> None:
    first = stream(3, "init", 5).standard_normal(7)
    stream(3, "init", 4).standard_normal(1000)
    np.testing.assert_array_equal(stream(3, "init", 5).standard_normal(7), first)


def test_streams_are_those_of_each_counter_whatever_was_drawn_before() -> None:
    streams = Streams(7, "batches")
    for counter in ((3, 1), (0, 0), (2**64 - 1, 2), (3, 1)):
        drawn = streams.at(*counter)
        expected = stream(7, "batches", *counter)
        assert (
            drawn.integers(0, 1000, 5, dtype=np.uint32).tolist()
            == expected.integers(0, 1000, 5, dtype=np.uint32).tolist()
        )
        assert drawn.standard_normal(3).tolist() == expected.standard_normal(3).tolist()


def test_seed_purpose_and_each_counter_word_tell_streams_apart() -> None:
    keys: list[tuple[int, str, tuple[int, ...]]] = [
        (0, "batches", (0, 0, 0)),
        (1, "batches", (0, 0, 0)),
        (2**64 - 1, "batches", (0, 0, 0)),
        (0, "init", (0, 0, 0)),
        (0, "batches", (1, 0, 0)),
        (0, "batches", (0, 1, 0)),
        (0, "batches", (0, 0, 1)),
        (0, "batches", (2**64 - 1, 0, 0)),
    ]
    drawn = [set(raw(seed, purpose, *counter)) for seed, purpose, counter in keys]
    for one, other in itertools.combinations(drawn, 2):
        assert not one & other


def test_neighbouring_counters_do_not_run_into_each_other() -> None:
    # With the counter in word 0 the second block of update 0 would be the first of update 1.
    blocks = [tuple(stream(0, "batches", update).bytes(32 * 64)) for update in range(4)]
    pieces = [bytes(block[i : i + 32]) for block in blocks for i in range(0, len(block), 32)]
    assert len(set(pieces)) == len(pieces) == 4 * 64


def test_numpy_integers_are_accepted() -> None:
    assert raw(int(np.int64(3)), "init", np.uint64(2)) == raw(3, "init", 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_outside_one_word_is_refused(seed: int) -> None:
    with pytest.raises(InputError, match=f"seed {seed} is outside 0 to 2"):
        stream(seed, "init")
    with pytest.raises(InputError):
        require_seed(seed)


@pytest.mark.parametrize("counter", [(-1,), (2**64,), (0, 0, 0, 0)])
def test_a_counter_that_would_wrap_or_overflow_is_refused(counter: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at most 3 words"):
        stream(0, "init", *counter)
