"""The mixed-integer programme whose optimum no plan of fastbp undercuts: the fewest FLOPs to recompute in a budget.

The class that it covers: every schedule that walks the blocks backward one after another, whatever whole tensors it
keeps from forward, however often it brings back others, in any slices of rows or sequences within a block. All that
fastbp/schedule makes of any plan is in it.

It is Checkmate's (Jain et al. 2020) with one stage a block instead of one a node. Its ticks: 0 is the last action of
the final norm's backward, k = L − b the first of block b's attention; window k lies between the ticks k and k + 1. Of
a tensor i that backward reads, the share S[i,k] of its rows is live at tick k; of a node n, the share R[n,k] runs again
in window k, rows that run twice there counted once; n makes i, m reads it.

    minimise  Σ flops(n)·R[n,k]
    (flow)      S[i,k+1] ≤ S[i,k] + R[n,k]           what is live was live before, or ran since
    (inputs)    R[m,k] ≤ S[i,k] + R[n,k]             what runs has its inputs: the same rows, at least
    (reads)     S[i,k] + R[n,k] ≥ 1                  attention, and the ops before it, go backward behind tick k
                S[i,k−1] + R[n,k−1] + R[n,k] ≥ 1     the ops behind attention: some rows before tick k, some after
    (sequence)  S[i,k] ≥ 1/B                         what attention reads is there at tick k, for a sequence at least
    (stays)     S[x,k] + S[mid,0] ≥ 1                a block's input x that brought mid back, or ln1, stays until its
                S[x,k] + S[qkv,0] + S[ln1,0] ≥ 1     norm goes backward
    (capacity)  Σ bytes(i)·S[i,k] + charge(k) ≤ budget

Why slices cannot break it: each line but (stays) holds for every row by itself, hence for the mean over rows. What may
be a fraction is so within attention's own block alone: a block's input is there whole or not at all, and so is every
tensor of a block that is not being walked. Those are whole numbers and take bytes as the arena counts them, rounded
up; slices take their bare bytes. z and proj, which backward does not read, have no S: x and mid, into which they go,
are of their size, and to have those instead costs no more. charge(k) is what is live whatever the slices: the stream's
gradient, whole because all blocks share its buffer; at tick 0 the final norm's input too, whose last rows it reads; at
the others the gradients that attention reads and writes, for one sequence, and the least that its scratch can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from fastbp.graph.graph import Graph, Node
from fastbp.schedule.effects import Effects
from fastbp.schedule.simulate import padded

STOP = 1e-3
"""The share of its optimum within which the solver may stop: its bound is that much lower."""
INFEASIBLE = 2
"""scipy's status of a programme without a solution."""

Terms = Mapping[int, float]
"""A linear form: coefficients by variable."""


@dataclass(frozen=True)
class Solved:
    """What the solver came to. `share` bounds the recomputed FLOPs from below, as a share of an update's."""

    share: float
    optimal: bool
    infeasible: bool


class Programme:
    """Variables by (letter, tensor or node, tick or window), and rows (terms, least)."""

    def __init__(self, graph: Graph, budget_bytes: int) -> None:
        self.graph, self.budget, self.effects = graph, max(budget_bytes, 1), Effects(graph)
        self.variables: dict[tuple[str, str, int], int] = {}
        self.rows: list[tuple[Terms, float]] = []
        for node in graph.nodes[:-2]:
            self._inputs(node)
        for name in self.held:
            self._flow(name)
        for block in range(graph.blocks):
            self._reads(block)
            self._stays(block)
        for tick in range(graph.blocks + 1):
            self._capacity(tick)

    @cached_property
    def home(self) -> dict[str, int]:
        """The block that reads each activation, forward or backward; none has two."""
        return {
            name: node.block
            for node in self.graph.nodes
            if node.block is not None
            for name in self._activations((*node.inputs, *node.backward_reads))
        }

    @cached_property
    def held(self) -> list[str]:
        """The tensors that have an S, in order."""
        return sorted(self.graph.read_by_backward & self.home.keys())

    def _activations(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self.graph.tensors[name].kind == "activation"]

    def _block(self, block: int) -> tuple[Sequence[Node], int]:
        """A block's nodes, and which of them is attention."""
        nodes = self.graph.nodes_of_block[block]
        return nodes, next(i for i, node in enumerate(nodes) if node.op.independent_along == "B")

    def tick(self, block: int) -> int:
        """When a block's attention begins to go backward."""
        return self.graph.blocks - block

    def last(self, name: str) -> int:
        """The last tick at which a tensor can be of use, and the window behind it; −1 where backward has none."""
        return self.tick(self.home[name]) if name in self.home else -1

    def live(self, name: str, tick: int) -> Terms:
        """S, where there is one."""
        there = name in self.home and name in self.graph.read_by_backward and tick <= self.last(name)
        return self._variable("S", name, tick) if there else {}

    def again(self, node: Node, window: int) -> Terms:
        """R, where there is one."""
        useful = window <= max(map(self.last, node.outputs))
        return self._variable("R", node.name, window) if useful else {}

    def _variable(self, letter: str, name: str, k: int) -> Terms:
        return {self.variables.setdefault((letter, name, k), len(self.variables)): 1.0}

    def _there(self, name: str, window: int) -> Terms:
        """The rows that are live when a window begins, or run in it."""
        return {**self.live(name, window), **self.again(self.graph.producer[name], window)}

    def _row(self, terms: Terms, least: float, minus: Terms | None = None) -> None:
        """terms − minus ≥ least."""
        self.rows.append(({**terms, **{at: -value for at, value in (minus or {}).items()}}, least))

    def _inputs(self, node: Node) -> None:
        for window in range(self.graph.blocks + 1):
            if again := self.again(node, window):
                for name in self._activations(node.inputs):
                    self._row(self._there(name, window), 0, again)

    def _flow(self, name: str) -> None:
        for window in range(self.last(name)):
            self._row(self._there(name, window), 0, self.live(name, window + 1))

    def _reads(self, block: int) -> None:
        """(reads) and (sequence)."""
        (nodes, attention), k = self._block(block), self.tick(block)
        for i, node in enumerate(nodes):
            for name in self._activations(node.backward_reads) if node.op.backward else ():
                if i > attention:
                    self._row({**self._there(name, k - 1), **self.again(self.graph.producer[name], k)}, 1)
                else:
                    self._row(self._there(name, k), 1)
                if i == attention:
                    self._row(self.live(name, k), 1 / node.rows)

    def _stays(self, block: int) -> None:
        nodes, attention = self._block(block)
        x, norm = nodes[0].inputs[0], nodes[0].outputs[0]
        for reader in nodes[1:]:
            if x in reader.inputs:
                self._row({**self.live(x, self.tick(block)), **self.live(reader.outputs[0], 0)}, 1)
        kept = {**self.live(nodes[attention].inputs[0], 0), **self.live(norm, 0)}
        self._row({**self.live(x, self.tick(block)), **kept}, 1)

    def _capacity(self, tick: int) -> None:
        terms: dict[int, float] = {}
        for name in self.held:
            nbytes = self.graph.bytes_of(name)
            size = padded(nbytes) if self.is_whole("S", name, tick) else nbytes
            terms |= {at: size / self.budget for at in self.live(name, tick)}
        self._row({}, self._charge(tick) / self.budget - 1, terms)

    def is_whole(self, letter: str, name: str, k: int) -> bool:
        """Whether a variable is a whole number."""
        return self.graph.producer[name].outputs[0] in self._streams or (letter == "S" and k < self.last(name))

    @cached_property
    def _streams(self) -> frozenset[str]:
        """The blocks' inputs."""
        return frozenset(self._block(block)[0][0].inputs[0] for block in range(self.graph.blocks))

    def _charge(self, tick: int) -> int:
        """Bytes that are live besides."""
        stream = padded(self.graph.bytes_of(self.graph.nodes[-2].inputs[0]))
        if tick == 0:
            return 2 * stream
        nodes, at = self._block(self.graph.blocks - tick)
        node = nodes[at]
        read = [node.ports[port] for port in (*node.op.differentiable, next(iter(node.op.outputs)))]
        gradients = sum(padded(self.graph.bytes_of(name) // node.rows) for name in read)
        return stream + gradients + min(self._scratch(node, rows) for rows in range(1, node.rows + 1))

    def _scratch(self, node: Node, rows: int) -> int:
        return sum(padded(size * self.graph.itemsize) for _, size in self.effects.scratch(node.name, True, rows))

    def solve(self, seconds: float) -> Solved:
        """The solver's answer within so many seconds."""
        costs, whole = np.zeros(len(self.variables)), np.zeros(len(self.variables))
        for (letter, name, k), at in self.variables.items():
            costs[at] = self.graph.by_name[name].flops[0] / self.graph.flops_per_pass if letter == "R" else 0
            whole[at] = self.is_whole(letter, name, k)
        entries = [(i, at, value) for i, (terms, _) in enumerate(self.rows) for at, value in terms.items()]
        row, column, values = zip(*entries, strict=True)
        matrix = coo_array((values, (row, column)), shape=(len(self.rows), len(self.variables))).tocsr()
        least = LinearConstraint(matrix, np.array([bound for _, bound in self.rows]))
        found = milp(
            costs, integrality=whole, bounds=Bounds(0, 1), constraints=least,
            options={"time_limit": seconds, "mip_rel_gap": STOP},
        )  # fmt: skip
        share = found.mip_dual_bound
        return Solved(
            share if share is not None and math.isfinite(share) else 0.0, found.status == 0, found.status == INFEASIBLE
        )
