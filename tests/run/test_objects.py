"""Bytes of objects: all that is reached, once."""

from __future__ import annotations

import sys

import numpy as np

from fastbp.run.objects import reachable_bytes


def test_what_is_shared_counts_once_and_circles_end() -> None:
    shared = [1.5] * 1000
    pair = [shared, shared]
    pair.append(pair)  # type: ignore[arg-type]
    assert reachable_bytes([pair], []) == sys.getsizeof(pair) + sys.getsizeof(shared) + sys.getsizeof(1.5)


def test_data_of_arrays_count_through_views_unless_they_are_known() -> None:
    array = np.zeros(1 << 16)
    view = array[5:9]
    assert reachable_bytes([view], []) > array.nbytes
    assert reachable_bytes([view], [array[1:]]) < 1000


def test_code_is_left_out() -> None:
    assert reachable_bytes([sys, np.ndarray, reachable_bytes, len], []) == 0
