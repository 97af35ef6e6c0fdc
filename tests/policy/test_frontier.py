"""The points that none beats, and the knee of a curve."""

from __future__ import annotations

import math

import pytest

from fastbp.policy.frontier import frontier, knee


def test_the_frontier_is_what_no_other_point_beats() -> None:
    assert frontier([(3, 1), (1, 5), (2, 5), (2, 3), (4, 1)]) == [(1, 5), (2, 3), (3, 1)]
    assert frontier([]) == []


def test_the_knee_is_farthest_below_the_chord() -> None:
    # Logarithms: (0, 3), (1, 1), (2, 0.5), (3, 0); the chord falls by one a step.
    points = [(10.0**x, 10.0**y) for x, y in ((3, 0), (1, 1), (0, 3), (2, 0.5))]
    assert knee(points) == (10.0, 10.0)
    # Units do not matter: they move a logarithmic axis.
    assert knee([(7 * x, y / 3) for x, y in points]) == (70.0, pytest.approx(10 / 3))


def test_the_knee_is_the_same_however_far_the_axes_reach() -> None:
    hyperbola = [(x, 1 + 0.1 / x) for x in (0.1 * 1.3**i for i in range(20))]
    found = knee(hyperbola)
    stretched = knee([(x**3, y**0.5) for x, y in hyperbola])
    assert found is not None
    assert stretched == (pytest.approx(found[0] ** 3), pytest.approx(math.sqrt(found[1])))


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(1, 2), (2, 1)],
        [(1, 4), (2, 2), (4, 1)],  # the chord itself
        [(1, 4), (2, 3.9), (4, 1)],  # all above it
        [(1, 1), (2, 0.5), (4, 2)],  # it rises
        [(1, 2), (2, 1), (4, 2)],
        [(2, 3), (2, 2), (2, 1)],
    ],
    ids=str,
)
def test_where_there_is_none(points: list[tuple[float, float]]) -> None:
    assert knee(points) is None
