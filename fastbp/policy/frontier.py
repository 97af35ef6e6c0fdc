"""What a curve of memory against cost has to say: the points that none beats, and where it bends."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

Point = tuple[float, float]


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points to which no other is as good or better in both, by their first number."""
    best: list[Point] = []
    for point in sorted(points):
        if not best or point[1] < best[-1][1]:
            best.append(point)
    return best


def knee(points: Sequence[Point]) -> Point | None:
    """Where a falling curve bends most: the point that lies farthest below the chord between the curve's ends, once the
    logarithms of both axes are scaled to [0, 1] between these. To its left little memory is saved for much cost.

    Numbers must be positive. None where the ends do not fall, or nothing lies below the chord. Source: the distance of
    Satopää et al. 2011 (Kneedle), without its smoothing.
    """
    ordered = sorted(points)
    if len(ordered) < 3 or not ordered[0][1] > ordered[-1][1] or ordered[0][0] == ordered[-1][0]:
        return None
    (left, top), (right, bottom) = ordered[0], ordered[-1]

    def depth(point: Point) -> float:
        x = log(point[0] / left) / log(right / left)
        y = log(point[1] / bottom) / log(top / bottom)
        return 1 - x - y

    deepest = max(ordered, key=depth)
    return deepest if depth(deepest) > 1e-9 else None
