"""The planner: the cheapest plan whose peak fits into a budget of bytes; fastbp/policy/cost.py says what cheap is.

The class of plans. Every block takes one of the options of fastbp/policy/options.py, blocks free to differ: a set of
its tensors to keep and slices to walk the rest in. Its input is kept, or it is not and then the block continues a
segment: the segment's first block has its input, all blocks of a segment keep nothing else and are sliced alike, and
their inputs are brought back, and stay, when backward reaches the segment. A segment is at most SEGMENT blocks long.
The first block's input may be looked up again. The head runs in slices of rows, the final norm with them. A lossy
planner has every option twice: as computed, and with all that the block keeps as bfloat16, its input too.

Within the class the plan is exact: a block's bytes depend on earlier blocks through the sum that these keep alone, so
labels (bytes kept so far, cost) of which none is worse in both are all that a block needs to know, in whole bytes.
What is found is built, simulated and laid out; where the layout needs more than the bytes that are live, the search is
repeated with that much less. Sources: the labels are those of any resource-constrained shortest path; the split into
segments is Rotor's (Beaumont et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np

from fastbp.base.errors import DoesNotFit
from fastbp.base.units import exact_bytes, format_bytes
from fastbp.graph.graph import Graph
from fastbp.memory.layout import layout_bytes
from fastbp.policy.cost import AGAIN, BACKWARD, COSTS, Cost
from fastbp.policy.live_sets import Prices, live_sets
from fastbp.policy.options import Option, head_slices, options
from fastbp.schedule.effects import Effects
from fastbp.schedule.plan import Plan, Slices, require_packable
from fastbp.schedule.schedule import head_actions
from fastbp.schedule.simulate import padded

SEGMENT = 12
"""Blocks that may be brought back from one input."""
TIES = 1 << 10
"""Of plans that cost the same the one with fewer slices is taken."""


@dataclass(frozen=True)
class Step:
    """`blocks` blocks that are walked by one option: what they keep, what they need, what they cost."""

    option: Option
    blocks: int
    with_input: bool
    kept_bytes: int
    needed_bytes: int
    cost: int
    flops: int


class Head(NamedTuple):
    """The head in slices of so many rows: bytes live, beside what the blocks keep, and what it costs."""

    rows: int
    nbytes: int
    cost: int


@dataclass(frozen=True)
class Found:
    """A plan, and what it is foreseen to need: the most bytes live at any tick, FLOPs that run again, and the cost of
    all blocks and of the head in the planner's measure.
    """

    plan: Plan
    peak_bytes: int
    recomputed_flops: int
    cost: int


@dataclass(frozen=True)
class Labels:
    """Ways to reach a block, by rising bytes and falling cost: from which block, by which step, from which label."""

    kept: np.ndarray
    cost: np.ndarray
    step: np.ndarray
    before: np.ndarray


class Reached(NamedTuple):
    """What one step makes of the labels from the `first` on of the block where it begins."""

    kept: np.ndarray
    cost: np.ndarray
    step: int
    first: int


class Planner:
    """The search on one graph. `plan(budget)` may be asked again and again. Where `lossy`, a block may keep its tensors
    as computed or all of them (but norms' and softmax's statistics) as bfloat16; of two that cost the same, as
    computed. Raises InputError for a lossy one in float64.
    """

    def __init__(self, graph: Graph, cost: Cost = COSTS["roofline"], lossy: bool = False) -> None:
        if lossy:
            require_packable(graph, frozenset())
        self.graph, self.cost, self.lossy = graph, cost, lossy
        self.stream_bytes = padded(graph.bytes_of("blocks.0.x"))
        self._effects = Effects(graph)

    @cached_property
    def options(self) -> list[Option]:
        return options(self.graph, self.cost, self.lossy)

    @cached_property
    def heads(self) -> list[Head]:
        """The ways to walk the head. Of two that cost the same the first is taken."""
        head = self.graph.nodes[-1]
        return [
            Head(rows, self._head_bytes(rows), self.cost.of(self.graph, head, BACKWARD, rows))
            for rows in head_slices(self.graph)
        ]

    def _head_bytes(self, rows: int) -> int:
        """The most that is live at the head, the blocks' kept tensors left out."""
        effects, plan = self._effects, Plan("", frozenset({"final.x"}), rows)
        actions = list(islice(head_actions(self.graph, plan, effects), 9))
        sizes = {stop - start for start, stop in (effects.token_rows(action) or (0, rows) for action in actions)}
        sets = live_sets(actions, plan, effects, {size: str(size) for size in sizes}, "final.x")
        priced = {"whole": self.graph.tokens, **{str(size): size for size in sizes}}
        return Prices(self.graph, effects, priced).peak(sets)

    @cached_property
    def steps(self) -> list[Step]:
        """Single blocks with their input kept, then segments."""
        found = [self._single(option) for option in self.options]
        for option in self.options:
            if not option.keep:
                found += [self._segment(option, blocks) for blocks in range(2, min(SEGMENT, self.graph.blocks) + 1)]
        return found

    @cached_property
    def first_steps(self) -> list[Step]:
        """The same with an input that is looked up again: only the first block's can be."""
        embedding = self.graph.nodes[0]
        lookup = self.cost.of(self.graph, embedding, AGAIN, self.graph.tokens)

        def without_input(step: Step) -> Step:
            forward = self._forward_bytes(step.option, step.blocks, with_input=False)
            return replace(
                step,
                with_input=False,
                kept_bytes=step.kept_bytes - step.option.input_bytes,
                needed_bytes=max(forward, self._backward_bytes(step.option, step.blocks, with_input=False)),
                cost=step.cost + (lookup - step.option.input_cost) * TIES,
                flops=step.flops + embedding.flops[0],
            )

        return list(map(without_input, self.steps))

    def _single(self, option: Option) -> Step:
        needed = max(option.forward_bytes, option.backward_bytes)
        ties = option.slices_count + (TIES // 2 if option.packed else 0)
        cost = (option.cost + option.input_cost) * TIES + min(ties, TIES - 1)
        return Step(option, 1, True, option.kept_bytes, needed, cost, option.recomputed_flops)

    def _segment(self, option: Option, blocks: int) -> Step:
        needed = max(self._forward_bytes(option, blocks, True), self._backward_bytes(option, blocks, True))
        forward = sum(node.flops[0] for node in self.graph.nodes_of_block[0])
        cost = (blocks - 1) * option.again_cost + blocks * option.cost + option.input_cost
        flops = (blocks - 1) * forward + blocks * option.recomputed_flops
        return Step(option, blocks, True, option.kept_bytes, needed, cost * TIES, flops)

    def _forward_bytes(self, option: Option, blocks: int, with_input: bool) -> int:
        first = option.forward_bytes if with_input else option.forward_bytes_without_input
        kept = option.input_bytes if with_input else 0
        return max(first, kept + option.forward_bytes_without_input if blocks > 1 else 0)

    def _backward_bytes(self, option: Option, blocks: int, with_input: bool) -> int:
        """The blocks' inputs stay one upon the other, under the stream's gradient while they are brought back. A
        segment's first input is whole then, however it was kept.
        """
        if blocks == 1:
            return option.backward_bytes if with_input else option.backward_bytes_without_input
        return max(option.backward_bytes_without_input, option.again_bytes) + (blocks - 1) * self.stream_bytes

    def plan(self, budget_bytes: int) -> Plan:
        """The plan. Raises DoesNotFit with the smallest budget that has one."""
        found = self._laid_out(budget_bytes) or (self._smallest if self._smallest[0] <= budget_bytes else None)
        if found is None:
            raise DoesNotFit(
                f"no plan fits into {format_bytes(budget_bytes)} ({budget_bytes} bytes) of activations:"
                f" the smallest needs {self.smallest_bytes} bytes"
            )
        return replace(found[1], budget_bytes=budget_bytes, policy=f"optimal({exact_bytes(budget_bytes)})")

    def _laid_out(self, budget_bytes: int) -> tuple[int, Plan] | None:
        """The cheapest plan whose layout fits, looked for among those of less and less live bytes."""
        limit = budget_bytes
        while found := self.search(limit):
            size = layout_bytes(self.graph, found.plan, budget_bytes)
            if size <= budget_bytes:
                return size, found.plan
            limit = found.peak_bytes - max(1, (size - budget_bytes) // 8)
        return None

    @property
    def smallest_bytes(self) -> int:
        """The smallest budget that has a plan."""
        return self._smallest[0]

    @cached_property
    def _smallest(self) -> tuple[int, Plan]:
        """The smallest layout, and its plan: that of the fewest live bytes, or of a few more that pack better."""
        low, high = 0, self.largest_bytes
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.search(middle) else (middle + 1, high)
        found = self.search(low)
        assert found is not None
        best = layout_bytes(self.graph, found.plan), found.plan
        limit = best[0] - 1
        while limit > low and (other := self.search(limit)):
            best = min(best, (layout_bytes(self.graph, other.plan), other.plan), key=lambda each: each[0])
            limit = other.peak_bytes - 1
        return best

    @cached_property
    def largest_bytes(self) -> int:
        """What the cheapest plan of all needs: more brings nothing."""
        found = self.search(1 << 62)
        assert found is not None
        return found.peak_bytes

    def search(self, limit: int) -> Found | None:
        """The cheapest plan with at most `limit` bytes live at any tick."""
        reached: list[list[Reached]] = [[] for _ in range(self.graph.blocks + 1)]
        labels: list[Labels] = []
        for block in range(self.graph.blocks + 1):
            labels.append(_merged(reached[block]) if block else _start())
            here = labels[block]
            ends = np.searchsorted(here.kept, limit - self._needed, "right").tolist()
            roomy = min(ends)
            for i in self._allowed(block):
                step = self._every_step[i]
                # Where every step fits, those that another beats in bytes kept and in cost are of no use.
                begin, end = roomy if i in self._beaten else 0, ends[i]
                if begin < end and block + step.blocks <= self.graph.blocks:
                    kept, cost = here.kept[begin:end] + step.kept_bytes, here.cost[begin:end] + step.cost
                    reached[block + step.blocks].append(Reached(kept, cost, i, begin))
        return self._traced(labels, limit)

    @cached_property
    def _every_step(self) -> list[Step]:
        return [*self.first_steps, *self.steps]

    def _allowed(self, block: int) -> range:
        """The steps that may begin at a block."""
        every = len(self._every_step)
        return range(0) if block == self.graph.blocks else range(len(self.first_steps) if block else 0, every)

    @cached_property
    def _needed(self) -> np.ndarray:
        return np.array([step.needed_bytes for step in self._every_step])

    @cached_property
    def _beaten(self) -> frozenset[int]:
        """Steps than which one that may begin at the same blocks, and as long, keeps less and costs less."""
        steps = self._every_step
        figures = np.array([(step.kept_bytes, step.cost, step.blocks, step.with_input) for step in steps], np.int64)
        kept, cost, blocks, with_input = (column[:, None] for column in figures.T)
        alike = (blocks == blocks.T) & (with_input == with_input.T)
        better = (kept <= kept.T) & (cost <= cost.T) & ((kept < kept.T) | (cost < cost.T))
        return frozenset(np.flatnonzero((alike & better).any(0)).tolist())

    def _ending(self, last: Labels, limit: int) -> tuple[int, int, Head] | None:
        """What blocks and head cost together, at the label and with the head that cost least."""
        found = []
        for head in self.heads:
            at = int(np.searchsorted(last.kept, limit - head.nbytes, "right")) - 1
            if at >= 0:  # of the labels that leave enough, the last costs least
                found.append((int(last.cost[at]) + head.cost * TIES, at, head))
        return min(found, key=lambda each: each[0], default=None)

    def _traced(self, labels: list[Labels], limit: int) -> Found | None:
        steps, ending = self._every_step, self._ending(labels[-1], limit)
        if ending is None:
            return None
        total, at, head = ending
        peak, flops = int(labels[-1].kept[at]) + head.nbytes, 0
        keep, packed, slices = {"final.x"}, set[str](), [Slices(1, 1)] * self.graph.blocks
        block = self.graph.blocks
        while block:
            step = steps[int(labels[block].step[at])]
            at = int(labels[block].before[at])
            block -= step.blocks
            peak = max(peak, int(labels[block].kept[at]) + step.needed_bytes)
            flops += step.flops
            slices[block : block + step.blocks] = [step.option.slices] * step.blocks
            keep |= {f"blocks.{block}.{name}" for name in step.option.keep}
            keep |= {f"blocks.{block}.x"} if step.with_input else set()
            packed |= {f"blocks.{block}.{name}" for name in step.option.packed} & keep
        plan = Plan("optimal", frozenset(keep), head.rows, tuple(slices), packed=frozenset(packed))
        return Found(plan, peak, flops, total // TIES)


def _start() -> Labels:
    zero = np.zeros(1, np.int64)
    return Labels(zero, zero, zero, zero)


def _merged(found: list[Reached]) -> Labels:
    """The labels of which none is as good as another in both respects."""
    if not found:
        empty = np.zeros(0, np.int64)
        return Labels(empty, empty, empty, empty)
    kept, cost = np.concatenate([each.kept for each in found]), np.concatenate([each.cost for each in found])
    order = np.argsort(kept, kind="stable")  # a few sorted runs, which it merges
    best = np.minimum.accumulate(cost[order])
    order = order[np.concatenate([[True], best[1:] < best[:-1]])]
    there = kept[order]
    order = order[np.concatenate([there[1:] > there[:-1], [True]])]  # of as many bytes the last costs least
    starts = np.cumsum([0, *(len(each.kept) for each in found[:-1])])
    by = np.searchsorted(starts, order, "right") - 1
    step, first = np.array([(each.step, each.first) for each in found])[by].T
    return Labels(kept[order], cost[order], step, first + order - starts[by])


def optimal_plan(graph: Graph, budget_bytes: int, cost: Cost, lossy: bool = False) -> Plan:
    """The planner's plan under one budget."""
    return Planner(graph, cost, lossy).plan(budget_bytes)
