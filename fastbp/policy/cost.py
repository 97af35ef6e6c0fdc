"""What a kernel call costs, for a planner to compare: FLOPs that run again, a roofline, or seconds measured here.

Costs are whole numbers, so that sums do not depend on their order. The roofline counts a call's FLOPs and, at BALANCE
FLOPs a byte, what it moves: a slice of few rows pays for the weights and their gradients, which it moves whole. It is
the sum of the two and not the larger, as kernels on few cores overlap them little (decision 23).
Source: Williams, Waterman and Patterson 2009, without the overlap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Protocol

from fastbp.base.dims import Dims
from fastbp.graph.graph import Graph, Node
from fastbp.ops.registry import OPS
from fastbp.schedule.actions import Backward, Recompute, RunsNode
from fastbp.schedule.effects import sliced_dims
from fastbp.schedule.schedule import Schedule

BALANCE = 8
"""FLOPs that two cores with wide vectors do while memory brings a byte: 236 GFLOP/s over some 30 GB/s."""

FORWARD, AGAIN, BACKWARD = "forward", "again", "backward"
TO_KEEP, FROM_KEPT = "forward, kept", "backward, kept"
"""Forward and backward where what they write or read waits between the two. It goes through memory, where a slice of
what is dropped stays in the caches.
"""


def when_kept(graph: Graph, node: Node, when: str, kept: Container[str]) -> str:
    """FORWARD as TO_KEEP, BACKWARD as FROM_KEPT, where most of the bytes that forward writes, or backward reads, are of
    tensors in `kept`. Blocks' inputs always count as such.
    """
    if node.block is None or when not in (FORWARD, BACKWARD):
        return when
    names = node.outputs if when == FORWARD else graph.read_by_backward.intersection(node.backward_reads)
    waiting = sum(graph.bytes_of(name) for name in names if name.endswith(".x") or name in kept)
    if 2 * waiting <= sum(map(graph.bytes_of, names)):
        return when
    return TO_KEEP if when == FORWARD else FROM_KEPT


def conversion(graph: Graph, op_name: str, tensor: str) -> Node:
    """The "pack" or "unpack" of a block's tensor as a node, to be priced as one: "blocks.0.pack u"."""
    block = graph.producer[tensor].block or 0
    dims = Dims({"N": graph.tokens, "C": graph.tensors[tensor].size // graph.tokens})
    prefix, number, name = tensor.split(".", 2)
    return Node(f"{prefix}.{number}.{op_name} {name}", op_name, dims, {}, block=block)


class Cost(Protocol):
    """The price of running a node over all rows, so many in a call."""

    def of(self, graph: Graph, node: Node, when: str, rows: int) -> int: ...


@dataclass(frozen=True)
class Flops:
    """Recomputed FLOPs alone."""

    def of(self, graph: Graph, node: Node, when: str, rows: int) -> int:
        return node.flops[0] if when == AGAIN else 0


@dataclass(frozen=True)
class Roofline:
    """FLOPs, and bytes at BALANCE, of every call."""

    def of(self, graph: Graph, node: Node, when: str, rows: int) -> int:
        backward = when in (BACKWARD, FROM_KEPT)
        if backward and node.op.backward is None:
            return 0
        units = rows // graph.tokens_per_unit(node)

        def price(size: int) -> int:
            return _price(node.op_name, sliced_dims(node, (0, size)), backward, graph.itemsize)

        whole, rest = divmod(node.rows, units)
        return whole * price(units) + (price(rest) if rest else 0)


@cache
def _price(op_name: str, dims: Dims, backward: bool, itemsize: int) -> int:
    """The FLOPs of a call, and in FLOPs what it moves."""
    op = OPS[op_name]
    flops = op.products(dims)[backward] + op.pointwise(dims)[backward]
    return flops + BALANCE * itemsize * op.elements_moved(BACKWARD if backward else FORWARD, dims)


COUNTS_AS = {
    FORWARD: (FORWARD, TO_KEEP), TO_KEEP: (TO_KEEP, FORWARD), AGAIN: (AGAIN, FORWARD, TO_KEEP),
    BACKWARD: (BACKWARD, FROM_KEPT), FROM_KEPT: (FROM_KEPT, BACKWARD),
}  # fmt: skip
"""What stands for a call, the first of them that was measured."""


SLICED = 1.04
"""What a planner is charged for a block's calls in slices, beside those in one: where cores are moved apart a slice of
512 rows takes 3 % longer and one of 64 rows 25 %, and what gains less than this by slices is not worth that.
"""


@dataclass(frozen=True)
class Measured:
    """Nanoseconds by (node's name within its block, when, rows), from fastbp/run/seconds.py. What was never run again
    costs as much as it does forward, slices of other sizes as much as those next in size. `sliced` is a factor of calls
    in slices: SLICED for a planner, 1 to foretell.
    """

    nanoseconds: Mapping[tuple[str, str, int], int]
    place: str = "near"
    """The workers' cores were NEAR or APART (fastbp/run/places.py)."""
    sliced: float = SLICED

    @property
    def as_measured(self) -> Measured:
        return replace(self, sliced=1.0)

    def of(self, graph: Graph, node: Node, when: str, rows: int) -> int:
        nanoseconds = self._nanoseconds(node, when, rows)
        return nanoseconds if node.block is None or rows >= graph.tokens else round(self.sliced * nanoseconds)

    def _nanoseconds(self, node: Node, when: str, rows: int) -> int:
        if when in (BACKWARD, FROM_KEPT) and node.op.backward is None:
            return 0
        name = node.name.split(".", 2)[-1] if node.block is not None else node.name
        exactly = next((then for then in COUNTS_AS[when] if (name, then, rows) in self.nanoseconds), None)
        return self.nanoseconds[name, exactly, rows] if exactly else self._next_to(name, when, rows)

    def _next_to(self, name: str, when: str, rows: int) -> int:
        for then in COUNTS_AS[when]:
            if known := self._sizes.get((name, then)):
                return self.nanoseconds[name, then, min(known, key=lambda size: abs(size - rows))]
        raise KeyError((name, when))

    @cached_property
    def _sizes(self) -> Mapping[tuple[str, str], Sequence[int]]:
        """Rows of the calls that were measured, by (name, when)."""
        sizes = defaultdict(list)
        for name, when, rows in self.nanoseconds:
            sizes[name, when].append(rows)
        return sizes


def schedule_cost(schedule: Schedule, cost: Cost) -> int:
    """What the calls of a schedule's blocks and of its head cost, and whatever runs again."""
    graph, total = schedule.graph, 0
    for action in schedule.actions:
        if isinstance(action, RunsNode):
            node = graph.by_name[action.node]
            units = action.rows[1] - action.rows[0] if action.rows else node.rows
            when = BACKWARD if isinstance(action, Backward) else AGAIN if isinstance(action, Recompute) else FORWARD
            when = when_kept(graph, node, when, schedule.plan.exact)
            if node.block is not None or when == AGAIN or (node is graph.nodes[-1] and when == BACKWARD):
                total += cost.of(graph, node, when, units * graph.tokens_per_unit(node)) * units // node.rows
    return total


COSTS: Mapping[str, Cost] = {"roofline": Roofline(), "flops": Flops()}
"""Those that need no measurement."""
