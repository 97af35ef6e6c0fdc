"""What to drop next: the tensor whose bytes at the peak are cheapest to free, and the planner's plan in fewer bytes.

Both are tried out: a schedule is built, simulated and laid out for each, so the figures are those of real plans.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastbp.base.units import exact_bytes
from fastbp.graph.graph import Graph
from fastbp.memory.layout import lay_out
from fastbp.policy.explain import changed
from fastbp.policy.named import short_name
from fastbp.policy.optimal import Planner
from fastbp.schedule.plan import Plan
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import Simulation, simulate

DROPS = 3
WORTH = 0.02
"""Share of the peak that dropping a tensor has to free to be worth a word."""
UNITS = (1 << 20, 1 << 10, 1)
"""Of a budget: the largest of which the peak has sixteen."""


@dataclass(frozen=True)
class Advice:
    """A change, the arena that it needs, and the FLOPs that it recomputes as a share of a pass. `what` is the tensor
    that is dropped in every block; or the bytes of a budget, as exact as --memory-budget reads them.
    """

    what: str
    peak_bytes: int
    extra_flops_share: float


def cheapest_drops(before: Simulation) -> list[Advice]:
    """Tensors that blocks keep, each dropped in every block alone: those that free the most bytes at the peak for a
    FLOP, the cheapest first, at most DROPS of them and none that frees too little.
    """
    graph, plan = before.schedule.graph, before.schedule.plan
    found: list[tuple[float, str, Simulation]] = []
    for name in _kept(graph, plan):
        after = simulate(training_schedule(graph, changed(graph, plan, f"{name}=recompute")))
        freed = before.peak_bytes - after.peak_bytes
        if freed >= WORTH * before.peak_bytes:
            found.append(((after.recomputed_flops - before.recomputed_flops) / freed, name, after))
    cheapest = sorted(found, key=lambda each: each[:2])[:DROPS]
    return [Advice(name, lay_out(after).size_bytes, after.extra_flops_share) for _, name, after in cheapest]


def _kept(graph: Graph, plan: Plan) -> list[str]:
    """Tensors of blocks that are kept, by their short names."""
    names = (name for name in sorted(plan.keep) if name in graph.producer and short_name(name) != name)
    return list(dict.fromkeys(map(short_name, names)))


def planned_instead(planner: Planner, plan: Plan, peak_bytes: int) -> Advice | None:
    """What the planner makes of as many bytes as a rule's plan takes that recomputes something; else of half as many,
    or of the fewest that it can. None where it has nothing to offer.
    """
    budget = _budget(planner, plan, peak_bytes)
    if budget is None:
        return None
    after = simulate(training_schedule(planner.graph, planner.plan(budget)))
    return Advice(exact_bytes(budget), lay_out(after).size_bytes, after.extra_flops_share)


def _budget(planner: Planner, plan: Plan, peak_bytes: int) -> int | None:
    smallest = planner.smallest_bytes
    if plan.budget_bytes is None and plan.keep < planner.graph.read_by_backward and smallest <= peak_bytes:
        return peak_bytes
    half = next(-(-peak_bytes // 2 // unit) * unit for unit in UNITS if peak_bytes >= 16 * unit)
    budget = max(half, smallest)
    return budget if budget < peak_bytes else None
