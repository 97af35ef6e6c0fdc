"""The planner's frontier: for rising budgets the cheapest plan, each point cheaper than the one below it."""

from __future__ import annotations

from fastbp.policy.optimal import Found, Planner

POINTS = 40


def sweep(planner: Planner, points: int = POINTS) -> list[Found]:
    """The plans at budgets that rise by a constant factor from the smallest that has one; no two of the same peak."""
    low, high = planner.smallest_bytes, planner.largest_bytes
    found: dict[int, Found] = {}
    for i in range(points):
        each = planner.search(round(low * (high / low) ** (i / (points - 1))))
        if each is not None:
            found[each.peak_bytes] = each
    return list(found.values())
