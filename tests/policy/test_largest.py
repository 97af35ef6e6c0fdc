"""The largest number that fits, and how few are asked."""

from __future__ import annotations

import pytest

from fastbp.policy.largest import largest


@pytest.mark.parametrize("most", [1, 2, 7, 64, 100])
@pytest.mark.parametrize("limit", [0, 1, 2, 3, 31, 32, 33, 64, 100, 1000])
def test_the_largest_that_fits(limit: int, most: int) -> None:
    asked: list[int] = []

    def fits(n: int) -> bool:
        asked.append(n)
        return n <= limit

    assert largest(fits, most) == min(limit, most)
    assert max(asked) <= most
    assert len(asked) == len(set(asked)) <= 14
