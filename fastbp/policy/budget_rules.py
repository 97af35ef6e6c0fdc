"""Two rules that others plan by under a budget of bytes, to compare with. Both see single tensors, not what is live
with them: a tensor costs what the op that makes it does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastbp.base.errors import DoesNotFit
from fastbp.base.units import exact_bytes, format_bytes
from fastbp.graph.graph import Graph, Node
from fastbp.memory.layout import layout_bytes
from fastbp.policy.cost import AGAIN, Cost
from fastbp.schedule.plan import Plan, head_rows
from fastbp.schedule.simulate import padded

STEPS = 4096
"""Into how many parts the knapsack's budget is cut: bytes are rounded up to one."""


@dataclass(frozen=True)
class Item:
    """What one op leaves for backward, kept or dropped together: its bytes, and what brings it back."""

    names: tuple[str, ...]
    nbytes: int
    cost: int


def items(graph: Graph, cost: Cost) -> list[Item]:
    """The blocks' tensors by the node that makes them; inputs of blocks, and what lies behind the blocks, stay."""
    found = []
    for node in graph.nodes:
        names = tuple(name for name in node.outputs if name in graph.read_by_backward)
        if node.block is not None and names and not names[0].endswith(".x") and names[0] != "final.x":
            found.append(Item(names, sum(padded(graph.bytes_of(name)) for name in names), _cost(graph, node, cost)))
    return found


def _cost(graph: Graph, node: Node, cost: Cost) -> int:
    return cost.of(graph, node, AGAIN, graph.tokens)


def greedy_plan(graph: Graph, budget_bytes: int, cost: Cost) -> Plan:
    """Drops the item that frees the most bytes for its cost, again and again, until the layout fits. Raises DoesNotFit
    where nothing is left to drop.
    """
    order = sorted(items(graph, cost), key=lambda item: -item.nbytes / item.cost)
    low, high = 0, len(order)
    while low < high:  # the peak is taken to fall with every item that is dropped
        middle = (low + high) // 2
        size = layout_bytes(graph, _plan(graph, "greedy", budget_bytes, cost, order[middle:]))
        low, high = (low, middle) if size <= budget_bytes else (middle + 1, high)
    plan = _plan(graph, "greedy", budget_bytes, cost, order[low:])
    size = layout_bytes(graph, plan)
    if size > budget_bytes:
        raise DoesNotFit(
            f"greedy needs {size} bytes of activations, more than {format_bytes(budget_bytes)}: ask for optimal"
        )
    return plan


def knapsack_plan(graph: Graph, budget_bytes: int, cost: Cost) -> Plan:
    """Keeps the items that save the most within `budget_bytes` in all. The peak is not looked at."""
    found = items(graph, cost)
    unit = max(1, -(-budget_bytes // STEPS))
    best = np.zeros(budget_bytes // unit + 1)
    taken = []
    for item in found:
        weight = -(-item.nbytes // unit)
        better = np.zeros(len(best), bool)
        if weight < len(best):
            candidate = best[: len(best) - weight] + item.cost
            better[weight:] = candidate > best[weight:]
            best[weight:] = np.maximum(best[weight:], candidate)
        taken.append(better)
    kept, room = [], len(best) - 1
    for item, better in zip(reversed(found), reversed(taken), strict=True):
        if better[room]:
            kept.append(item)
            room -= -(-item.nbytes // unit)
    return _plan(graph, "knapsack", budget_bytes, cost, kept)


def _plan(graph: Graph, name: str, budget_bytes: int, cost: Cost, kept: list[Item]) -> Plan:
    movable = {tensor for item in items(graph, cost) for tensor in item.names}
    keep = (graph.read_by_backward - movable) | {tensor for item in kept for tensor in item.names}
    return Plan(f"{name}({exact_bytes(budget_bytes)})", frozenset(keep), head_rows(graph), budget_bytes=budget_bytes)
