"""rotor(SIZE): the cheapest persistent schedule of the chain of blocks within a budget, by dynamic programming.

With the input of a part there, its first block is run forward in one of two ways: all of its tensors stay until it is
walked backward (F_all), or its input alone does (F_ck), the blocks behind it run and keep nothing (F_empty) up to the
next input that stays, and it is brought back later with them. C(l, m) is the least cost of reversing l blocks in m
bytes besides their input, P(l, m) that of the last l in the first pass, where running forward is free and the head
comes behind:

    C(1, m) = again                                                  if walk ≤ m
    C(l, m) = min( f + C(l−1, m − E − S)                             if all, back ≤ m,
                   i·f + C(l−i, m − S) + C(i, m)  for 0 < i < l      if run ≤ m )
    P(0, m) = 0                                                      if head ≤ m
    P(l, m) = min( P(l−1, m − E − S)                                 if back ≤ m,
                   P(l−i, m − S) + C(i, m)        for 0 < i ≤ l )    no S where nothing is left

f is a block's forward cost and `again` that of what its backward reads; S is an input's size, E that of the block's
other tensors; the rest are the most bytes live, the input left out (fastbp/policy/chain.py). Blocks are all alike and
are walked whole. Bytes are cut into units of a 32nd of S, sizes rounded up and the budget down, so what would fit by
less than that may be missed. What is found is laid out; where that needs more than was foreseen, a unit less is tried,
and so on: the plan fits, and its cost never rises with the budget. Source: Beaumont et al. 2019.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from fastbp.base.errors import DoesNotFit
from fastbp.base.units import exact_bytes, format_bytes
from fastbp.graph.graph import Graph
from fastbp.memory.layout import layout_bytes
from fastbp.policy.chain import chain_of
from fastbp.policy.cost import Cost
from fastbp.schedule.plan import Plan, head_rows
from fastbp.schedule.reversal import Reversal, Split
from fastbp.schedule.simulate import padded

UNITS = 32
NEVER = 1 << 58
"""The cost of what does not fit; four of them fit into 64 bits."""
ALL = 0
"""The choice of F_all; any other is the number of blocks up to the next input that stays."""

Table = list[tuple[np.ndarray, np.ndarray]]
"""By blocks: costs and choices by units."""


class Rotor:
    """The programme on one graph."""

    def __init__(self, graph: Graph, cost: Cost) -> None:
        self.graph, self.blocks = graph, graph.blocks
        self.unit = -(-padded(graph.bytes_of("blocks.0.x")) // UNITS)
        self.chain = chain_of(graph, cost).in_units(self.unit)

    @cached_property
    def most(self) -> int:
        """Units in which everything stays."""
        c = self.chain
        return self.blocks * (c.E + c.S) + max(c.head, c.back, c.walk, c.all)

    @cached_property
    def units(self) -> np.ndarray:
        return np.arange(self.most + 1)

    def _where(self, needed: int, cost: np.ndarray) -> np.ndarray:
        return np.where(self.units >= needed, np.minimum(cost, NEVER), NEVER)

    def _less(self, cost: np.ndarray, taken: int) -> np.ndarray:
        """The costs with so many units less."""
        return np.concatenate([np.full(min(taken, len(cost)), NEVER), cost])[: len(cost)]

    @cached_property
    def inner(self) -> Table:
        """C; the entry for no blocks is not read."""
        c = self.chain
        once = self._where(c.walk, np.full(len(self.units), c.again))
        table: Table = [(once, once), (once, np.ones_like(once))]
        for count in range(2, self.blocks + 1):
            stays = self._less(table[count - 1][0], c.E + c.S)
            ways = [self._where(max(c.all, c.back), c.forward + stays)]
            for ahead in range(1, count):
                rest = self._less(table[count - ahead][0], c.S)
                needed = c.run if ahead == 1 else max(c.run, c.run_on)
                ways.append(self._where(needed, ahead * c.forward + rest + table[ahead][0]))
            table.append(_best(ways))
        return table

    @cached_property
    def outer(self) -> Table:
        """P."""
        c = self.chain
        end = self._where(c.head, np.zeros(len(self.units), np.int64))
        table: Table = [(end, end)]
        for count in range(1, self.blocks + 1):
            ways = [self._where(c.back, self._less(table[count - 1][0], c.E + self._next(count, 1)))]
            for ahead in range(1, count + 1):
                rest = self._less(table[count - ahead][0], self._next(count, ahead))
                ways.append(rest + self.inner[ahead][0])
            table.append(_best(ways))
        return table

    def _next(self, count: int, ahead: int) -> int:
        """The input that stays behind the first `ahead` of the last `count` blocks."""
        return self.chain.S if ahead < count else 0

    def _inner(self, start: int, count: int, units: int) -> Reversal:
        """The reversal that C found."""
        if count == 1:
            return start
        choice = int(self.inner[count][1][units])
        ahead, c = max(choice, 1), self.chain
        taken = c.E + c.S if choice == ALL else c.S
        earlier = start if choice == ALL else self._inner(start, ahead, units)
        return Split(earlier, self._inner(start + ahead, count - ahead, units - taken), choice == ALL)

    def _outer(self, start: int, units: int) -> tuple[Reversal, frozenset[str]]:
        """The reversal that P found, and what forward keeps."""
        count, c = self.blocks - start, self.chain
        choice = int(self.outer[count][1][units])
        ahead = max(choice, 1)
        kept = frozenset({f"blocks.{start}.x"} | (self._others(start) if choice == ALL else set()))
        first = start if choice == ALL else self._inner(start, ahead, units)
        if ahead == count:
            return first, kept
        taken = self._next(count, ahead) + (c.E if choice == ALL else 0)
        later, more = self._outer(start + ahead, units - taken)
        return Split(first, later, choice == ALL), kept | more

    def _others(self, block: int) -> set[str]:
        """What else a block's backward reads."""
        prefix = f"blocks.{block}."
        return {name for name in self.graph.read_by_backward if name.startswith(prefix)} - {f"{prefix}x"}

    def search(self, units: int) -> Plan | None:
        """The cheapest plan that is foreseen to need at most so many units."""
        left = min(units, self.most) - self.chain.S
        if left < 0 or self.outer[self.blocks][0][left] >= NEVER:
            return None
        reversal, kept = self._outer(0, left)
        outside = {name for name in self.graph.read_by_backward if not name.startswith("blocks.")}
        return Plan("rotor", kept | outside, head_rows(self.graph), reversal=reversal)

    def plan(self, budget_bytes: int) -> Plan:
        """The plan for a budget. Raises DoesNotFit where none fits."""
        found, size = None, 0
        for units in range(min(budget_bytes // self.unit, self.most + self.chain.S), -1, -1):
            plan = self.search(units)
            if plan is None:
                break
            if plan != found:
                found, size = plan, layout_bytes(self.graph, plan)
            if size <= budget_bytes:
                return replace(plan, budget_bytes=budget_bytes, policy=f"rotor({exact_bytes(budget_bytes)})")
        raise DoesNotFit(f"no plan of rotor fits into {format_bytes(budget_bytes)} of activations: ask for optimal")


def _best(ways: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The least costs, and which way has each: the first of them."""
    costs = np.stack(ways)
    return np.minimum(costs.min(axis=0), NEVER), costs.argmin(axis=0)


def rotor_plan(graph: Graph, budget_bytes: int, cost: Cost) -> Plan:
    """Rotor's plan under one budget."""
    return Rotor(graph, cost).plan(budget_bytes)
