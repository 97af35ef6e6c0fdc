"""A block as its walks see it, whatever they keep: stages of nodes that go in the same slices, and what the calls of
each node read and write.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from fastbp.graph.graph import Graph, Node
from fastbp.schedule.effects import Effects, gradient
from fastbp.schedule.local import Rows


@dataclass(frozen=True)
class Stage:
    """Nodes one behind the other that are independent along the same dimension: rows, or sequences of `tokens`."""

    nodes: tuple[Node, ...]
    by_rows: bool
    tokens: int

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(node.name for node in self.nodes)

    @cached_property
    def made(self) -> frozenset[str]:
        return frozenset(name for node in self.nodes for name in node.outputs)


class Touched(NamedTuple):
    """What a node's calls read and write, by name."""

    forward: tuple[str, ...]
    backward: tuple[str, ...]
    gradients: tuple[tuple[str, bool], ...]
    """Of backward, and whether they live for a slice of sequences, not for one of rows."""
    parts: tuple[tuple[str, str], ...]
    """(gradient, part): what is added behind backward."""
    tokens: int
    """In a row as the node's op counts them."""

    def units(self, extent: Rows | None) -> Rows | None:
        """Tokens as rows of the node's op; None for all."""
        return (extent[0] // self.tokens, extent[1] // self.tokens) if extent else None

    def without(self, names: Set[str]) -> Touched:
        """The same, without some tensors."""
        forward, backward = (
            tuple([name for name in touched if name not in names]) for touched in (self.forward, self.backward)
        )
        return Touched(forward, backward, self.gradients, self.parts, self.tokens)


class Block:
    """One block of a graph."""

    def __init__(self, graph: Graph, effects: Effects, number: int) -> None:
        self.graph, self.effects = graph, effects
        nodes = graph.nodes_of_block[number]
        groups = [tuple(found) for _, found in groupby(nodes, lambda node: node.op.independent_along)]
        self.stages = [
            Stage(found, found[0].op.independent_along == "N", graph.tokens_per_unit(found[0])) for found in groups
        ]
        self.input, self.output = nodes[0].inputs[0], nodes[-1].outputs[0]
        self.made = frozenset().union(*(stage.made for stage in self.stages))
        self.stream = effects.buffer(gradient(self.output))

    @property
    def sequence(self) -> int:
        """Tokens of a sequence, or one where no op looks beyond its row."""
        return max(stage.tokens for stage in self.stages)

    @cached_property
    def not_activations(self) -> frozenset[str]:
        names = (name for stage in self.stages for node in stage.nodes for name in node.ports.values())
        return frozenset(name for name in names if self.graph.tensors[name].kind != "activation")

    @cached_property
    def touched(self) -> dict[str, Touched]:
        """By node."""
        return {node.name: self._touched_by(node) for stage in self.stages for node in stage.nodes}

    def _touched_by(self, node: Node) -> Touched:
        """The stream's gradient is whole; a part of it is added at once; the rest live as long as their tensors do."""
        gradients: dict[str, bool] = {}
        parts = []
        for port in (*node.op.outputs, *node.op.differentiable) if self.effects.runs_backward(node) else ():
            name = node.ports[port]
            target = gradient(name) if port in node.op.outputs else self.effects.contribution(node, name)
            into, buffer = self.effects.buffer(gradient(name)), self.effects.buffer(target)
            if target != gradient(name):
                parts.append((into, target))
                gradients[buffer] = False
            elif buffer != self.stream:
                gradients[buffer] = name in self._crossing
        forward, tokens = (*node.inputs, *node.outputs), self.graph.tokens_per_unit(node)
        return Touched(forward, node.backward_reads, tuple(gradients.items()), tuple(parts), tokens)

    @cached_property
    def _crossing(self) -> frozenset[str]:
        """Tensors that a later stage reads."""
        return frozenset(
            name
            for i, stage in enumerate(self.stages)
            for name in stage.made
            if any(name in node.inputs for later in self.stages[i + 1 :] for node in later.nodes)
        )
