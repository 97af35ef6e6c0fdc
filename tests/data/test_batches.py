"""Windows: the cut, batches without history, evaluation windows without overlap."""

from __future__ import annotations

import numpy as np
import pytest

from fastbp.base.errors import InputError
from fastbp.data.batches import Batches, EvaluationWindows, split
from fastbp.data.tokenizer import Ids


def count(tokens: int) -> Ids:
    """Token i is i, so a window shows where it was cut."""
    return np.arange(tokens, dtype=np.int32)


def buffers(batch: int, context: int) -> tuple[Ids, Ids]:
    return np.full((batch, context), -1, np.int32), np.full((batch, context), -1, np.int32)


def drawn(batches: Batches, update: int, micro: int = 0) -> Ids:
    inputs, targets = buffers(batches.batch, batches.context)
    batches.fill(update, micro, inputs, targets)
    np.testing.assert_array_equal(targets, inputs + 1)
    return inputs


@pytest.mark.parametrize(
    ("tokens", "context", "fraction", "train", "valid"),
    [
        (1000, 8, 0.1, 900, 100),
        (1005, 8, 0.1, 905, 100),  # 100.5 rounds to even
        (1000, 8, 0.25, 750, 250),
        (100, 1, 0.29, 71, 29),  # 100 · 0.29 is 28.999999999999996
        (100, 19, 0.1, 80, 20),  # 10 would hold no window
        (100, 19, 0.99, 20, 80),
        (40, 19, 0.1, 20, 20),  # the shortest with two parts
    ],
)
def test_split_cuts_by_position(tokens: int, context: int, fraction: float, train: int, valid: int) -> None:
    whole = count(tokens)
    parts = split(whole, context, fraction)
    assert (parts.train.size, parts.valid.size, parts.shared) == (train, valid, False)
    np.testing.assert_array_equal(np.concatenate([parts.train, parts.valid]), whole)
    assert np.shares_memory(parts.train, whole)
    assert np.shares_memory(parts.valid, whole)


@pytest.mark.parametrize("tokens", [20, 21, 39])
def test_split_shares_a_text_too_short_for_two_parts(tokens: int) -> None:
    whole = count(tokens)
    parts = split(whole, 19)
    assert parts.shared
    np.testing.assert_array_equal(parts.train, whole)
    np.testing.assert_array_equal(parts.valid, whole)


def test_split_refuses_a_text_without_one_window() -> None:
    with pytest.raises(InputError) as caught:
        split(count(19), 19, name="poem.txt")
    assert str(caught.value) == (
        "poem.txt holds 19 tokens, but context 19 needs at least 20 (context + 1); "
        "use --context 18 or less, or a longer text"
    )


@pytest.mark.parametrize("tokens", [0, 1])
def test_no_context_is_proposed_where_none_would_do(tokens: int) -> None:
    with pytest.raises(InputError, match=r"needs at least 9 \(context \+ 1\); use a longer text"):
        split(count(tokens), 8)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_split_refuses_a_fraction_that_leaves_a_part_empty(fraction: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        split(count(100), 4, fraction)


def test_a_batch_is_a_function_of_seed_update_and_micro() -> None:
    first = drawn(Batches(count(500), 6, 8, seed=3), update=7, micro=1)
    batches = Batches(count(500), 6, 8, seed=3)
    for update in (9, 0, 7):
        drawn(batches, update)
    np.testing.assert_array_equal(drawn(batches, 7, 1), first)
    assert not np.array_equal(drawn(batches, 7, 0), first)
    assert not np.array_equal(drawn(batches, 8, 1), first)
    assert not np.array_equal(drawn(Batches(count(500), 6, 8, seed=4), 7, 1), first)


def test_windows_are_whole_and_in_order() -> None:
    inputs = drawn(Batches(count(500), 6, 8, seed=0), 0)
    np.testing.assert_array_equal(inputs, inputs[:, :1] + np.arange(8))


def test_starts_are_uniform_over_all_legal_ones() -> None:
    batches = Batches(count(24), 4000, 8, seed=0)
    tally = np.bincount(drawn(batches, 0)[:, 0])
    assert tally.size == 24 - 8  # start 15 ends on the last token
    # 250 expected each, with a standard deviation of 15.3.
    assert abs(tally - 250).max() < 5 * 15.3


def test_the_shortest_legal_text_has_one_window() -> None:
    np.testing.assert_array_equal(drawn(Batches(count(9), 3, 8, seed=0), 0), [range(8)] * 3)


def test_other_integer_tokens_are_copied_exactly() -> None:
    wide = Batches(count(300).astype(np.uint16), 3, 8, seed=0)
    np.testing.assert_array_equal(drawn(wide, 0), drawn(Batches(count(300), 3, 8, seed=0), 0))


def test_fill_refuses_buffers_of_another_shape() -> None:
    batches = Batches(count(100), 1, 8, seed=0)
    for shape in [(2, 8), (1, 7), (8,)]:  # the first would broadcast
        wrong, right = np.empty(shape, np.int32), np.empty((1, 8), np.int32)
        with pytest.raises(ValueError, match=r"are not \(1, 8\)"):
            batches.fill(0, 0, wrong, right)
        with pytest.raises(ValueError, match=r"are not \(1, 8\)"):
            batches.fill(0, 0, right, wrong)


@pytest.mark.parametrize(("update", "micro"), [(-1, 0), (0, -1)])
def test_there_is_no_batch_before_the_first(update: int, micro: int) -> None:
    with pytest.raises(ValueError, match="counter"):
        drawn(Batches(count(100), 1, 8, seed=0), update, micro)


@pytest.mark.parametrize("size", [0, -3])
def test_sizes_below_one(size: int) -> None:
    tokens = count(100)
    with pytest.raises(InputError, match=f"batch {size} is below 1"):
        Batches(tokens, size, 8, 0)
    with pytest.raises(InputError, match=f"context {size} is below 1"):
        Batches(tokens, 1, size, 0)
    with pytest.raises(InputError, match=f"batch {size} is below 1"):
        EvaluationWindows(tokens, size, 8, 1)
    with pytest.raises(InputError, match=f"context {size} is below 1"):
        EvaluationWindows(tokens, 1, size, 1)
    with pytest.raises(InputError, match=f"evaluation windows {size} is below 1"):
        EvaluationWindows(tokens, 1, 8, size)
    with pytest.raises(InputError, match=f"context {size} is below 1"):
        split(tokens, size)


def test_an_illegal_seed_is_refused_before_the_first_batch() -> None:
    with pytest.raises(InputError, match="seed -1"):
        Batches(count(100), 1, 8, -1)


def test_tokens_are_one_row() -> None:
    with pytest.raises(InputError, match=r"shape \(10, 10\)"):
        Batches(count(100).reshape(10, 10), 1, 8, 0)


def test_too_few_tokens_name_the_part() -> None:
    with pytest.raises(InputError, match=r"^the training part holds 8 tokens, .* at least 9 "):
        Batches(count(8), 1, 8, 0)
    with pytest.raises(InputError, match=r"^the validation part holds 8 tokens, .* at least 9 "):
        EvaluationWindows(count(8), 1, 8, 1)
    with pytest.raises(InputError, match=r"^part of poem\.txt holds 8 tokens"):
        EvaluationWindows(count(8), 1, 8, 1, name="part of poem.txt")


def walk(windows: EvaluationWindows) -> tuple[list[int], Ids]:
    """Return how many rows of each batch are real and the inputs of all of those."""
    real, rows = [], []
    for k in range(windows.batches):
        inputs, targets = buffers(windows.batch, windows.context)
        real.append(windows.fill(k, inputs, targets))
        np.testing.assert_array_equal(targets, inputs + 1)
        np.testing.assert_array_equal(inputs[real[-1] :, 0], 0)  # the rest is window 0
        rows.append(inputs[: real[-1]])
    return real, np.concatenate(rows)


@pytest.mark.parametrize(
    ("tokens", "wanted", "real", "starts"),
    [
        (9, 5, [1], [0]),
        (16, 5, [1], [0]),
        (17, 5, [2], [0, 8]),
        (20, 5, [2], [0, 11]),
        (101, 1, [1], [0]),
        (101, 3, [3], [0, 46, 92]),
        (101, 5, [3, 2], [0, 23, 46, 69, 92]),
        (101, 6, [3, 3], [0, 18, 36, 55, 73, 92]),
    ],
)
def test_evaluation_windows_are_evenly_spaced(tokens: int, wanted: int, real: list[int], starts: list[int]) -> None:
    windows = EvaluationWindows(count(tokens), 3, 8, wanted)
    found_real, rows = walk(windows)
    assert found_real == real
    assert rows[:, 0].tolist() == starts
    assert windows.windows == len(starts)
    assert windows.target_tokens == 8 * len(starts)


@pytest.mark.parametrize("tokens", range(9, 120))
def test_no_token_is_a_target_twice(tokens: int) -> None:
    windows = EvaluationWindows(count(tokens), 4, 8, 1000)
    _, rows = walk(windows)
    targets = (rows + 1).ravel()
    assert len(set(targets.tolist())) == targets.size == windows.target_tokens
    assert tokens - 1 - targets.size < 8  # what is left out


def test_starts_far_into_a_long_text_do_not_overflow() -> None:
    windows = EvaluationWindows(count(1_000_009), 5000, 8, 5000)
    inputs, targets = buffers(5000, 8)
    assert windows.fill(0, inputs, targets) == 5000
    expected = [i * 1_000_000 // 4999 for i in range(5000)]  # products up to 5e9
    assert inputs[:, 0].tolist() == expected


def test_evaluating_twice_gives_the_same_rows() -> None:
    windows = EvaluationWindows(count(300), 4, 8, 10)
    np.testing.assert_array_equal(walk(windows)[1], walk(windows)[1])


@pytest.mark.parametrize("k", [-1, 2])
def test_there_is_no_such_evaluation_batch(k: int) -> None:
    windows = EvaluationWindows(count(300), 5, 8, 10)
    assert windows.batches == 2
    with pytest.raises(IndexError, match=f"batch {k} of 2"):
        windows.fill(k, *buffers(5, 8))
