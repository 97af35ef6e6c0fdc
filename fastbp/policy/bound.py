"""A certificate for the planner: no plan under the budget recomputes fewer FLOPs than the bound.

The bound is that of a mixed-integer programme (fastbp/policy/programme.py), which shares no code with the planner's
search and covers more plans than that: all that fastbp/schedule can run. Between the two lies what a better planner
could still win.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from fastbp.graph.graph import Graph
from fastbp.policy.cost import COSTS
from fastbp.policy.optimal import Planner
from fastbp.policy.programme import Programme

SECONDS = 20.0
"""The solver's time; its bound holds whenever it stops."""
SLACK = 1e-6
"""The solver's tolerance, as a share of the budget and of an update's FLOPs; the bound gives both away."""


@dataclass(frozen=True)
class Bound:
    """No plan recomputes fewer than `flops`; None where no plan fits. `optimal` says that the solver finished."""

    flops: int | None
    seconds: float
    optimal: bool


@dataclass(frozen=True)
class Certificate:
    """The planner's FLOPs under a budget beside their bound; None where there is no plan. `update_flops` are those of
    an update that recomputes nothing.
    """

    budget_bytes: int
    bound: Bound
    planner_flops: int | None
    update_flops: int

    @property
    def gap(self) -> float | None:
        """How much cheaper a plan could be at most, as a share of an update's FLOPs."""
        if self.planner_flops is None or self.bound.flops is None:
            return None
        return (self.planner_flops - self.bound.flops) / self.update_flops


def lower_bound(graph: Graph, budget_bytes: int, seconds: float = SECONDS) -> Bound:
    """The bound for plans with at most `budget_bytes` live at any tick."""
    start = time.perf_counter()
    solved = Programme(graph, math.ceil(budget_bytes * (1 + SLACK))).solve(seconds)
    taken = time.perf_counter() - start
    if solved.infeasible:
        return Bound(None, taken, True)
    return Bound(math.ceil(max(0.0, solved.share - SLACK) * graph.flops_per_pass), taken, solved.optimal)


def certify(graph: Graph, budget_bytes: int, planner: Planner | None = None) -> Certificate:
    """The planner's answer to a budget of live bytes, and how far from the best it can be at most. A `planner` of
    FLOPs that is at hand spares making one.
    """
    found = (planner or Planner(graph, COSTS["flops"])).search(budget_bytes)
    flops = found.recomputed_flops if found else None
    return Certificate(budget_bytes, lower_bound(graph, budget_bytes), flops, graph.flops_per_pass)
