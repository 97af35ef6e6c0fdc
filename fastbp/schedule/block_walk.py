"""A block walked in slices: sequence by sequence through attention, some rows at a time through the ops around it.

A block is a few stages: neighbours that are independent row by row (LN1 and the projections; everything behind
attention), and attention, which is independent sequence by sequence. A slice of sequences goes through all stages;
within a stage of rows it is cut again. A tensor that is not kept lives as long as its readers want: within a slice of
rows where they are of the same stage, within a slice of sequences where they are of a later one. A tensor that the plan
packs lives so too: each slice is packed behind the node that makes it, and unpacked where backward wants it. Only the
block's input, which is read whole, is unpacked whole before its backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set

from fastbp.graph.graph import Node
from fastbp.schedule.actions import Action, Backward, Forward, Local, Pack, Recompute, Reduce, Unpack
from fastbp.schedule.block import Block, Stage
from fastbp.schedule.local import Rows, local
from fastbp.schedule.plan import Plan, Slices

Where = Mapping[str, Rows | None]
"""Tensors that are there, and the rows of them; None for all."""


class BlockWalk:
    """The actions of one block under a plan."""

    def __init__(self, block: Block, plan: Plan, slices: Slices) -> None:
        self.graph, self.effects, self.stages = block.graph, block.effects, block.stages
        self.input, self.output = block.input, block.output
        self.rows, self.step = slices.rows, slices.sequences * block.sequence
        self.kept, self.packed = plan.exact & block.made, plan.packed & block.made - {block.output}
        self._whole = frozenset({*self.kept, block.output, *block.not_activations})
        """What never exists for a slice alone."""
        self._touched = {name: touched.without(self._whole) for name, touched in block.touched.items()}

    def forward(self) -> Iterator[Action]:
        """The block's output from its input, and on the way whatever is kept."""
        for outer in self._outer():
            yield from self._make({self.output}, outer, {self.input: None}, Forward)

    def again(self) -> Iterator[Action]:
        """The block's output once more."""
        for outer in self._outer():
            yield from self._make({self.output}, outer, self._there(), Recompute)

    def backward(self) -> Iterator[Action]:
        """The gradient of the block's input, which must be there whole, from that of its output."""
        for outer in self._outer():
            where = self._there()
            for stage in reversed(self.stages):
                yield from self._make(self._from_before(stage, where), outer, where, Recompute)
                yield from self._stage_backward(stage, outer, where)

    def _there(self) -> dict[str, Rows | None]:
        """What backward finds."""
        return {self.input: None, **dict.fromkeys(sorted(self.kept - {self.output}))}

    def _outer(self) -> Iterator[Rows]:
        return _cut((0, self.graph.tokens), self.step)

    def _inner(self, stage: Stage, outer: Rows) -> Iterator[Rows]:
        return _cut(outer, self.rows) if stage.by_rows else iter([outer])

    def _extent(self, rows: Rows) -> Rows | None:
        """None where that is everything."""
        return None if rows == (0, self.graph.tokens) else rows

    def _make(
        self, targets: Set[str], outer: Rows, where: dict[str, Rows | None], kind: type[Forward]
    ) -> Iterator[Action]:
        """Runs forward whatever `targets` want that is not there; `where` learns what outlives its stage."""
        wanted, packed = self._wanted(targets, where, frozenset() if kind is Forward else self.packed)
        names = {node.name for node in wanted}
        for stage in self.stages:
            nodes = [node for node in stage.nodes if node.name in names]
            unpacked = sorted(stage.made & packed)
            if not nodes and not unpacked:
                continue
            behind = {name for node in wanted if node.name not in stage.names for name in node.inputs} | targets
            if not stage.by_rows:  # its own backward, which comes later, reads these too
                behind |= {name for node in nodes for name in node.outputs}
            for name in sorted(stage.made & behind - where.keys()):
                where[name] = None if name in self._whole else self._extent(outer)
            for rows in self._inner(stage, outer):
                yield from self._unpack(unpacked, rows, where)
                yield from self._run(kind, nodes, rows, where)

    def _wanted(self, names: Iterable[str], where: Where, packed: frozenset[str]) -> tuple[list[Node], frozenset[str]]:
        """The nodes that must run for `names` to exist, in order, and those of `packed` that must be unpacked."""
        found, unpacked, open_names = set(), set(), list(names)
        while open_names:
            name = open_names.pop()
            if name in where or self.graph.tensors[name].kind != "activation":
                continue
            node = self.graph.producer[name]
            if name in packed:
                unpacked.add(name)
            elif node.name not in found:
                found.add(node.name)
                open_names += node.inputs
        return [node for stage in self.stages for node in stage.nodes if node.name in found], frozenset(unpacked)

    def _run(self, kind: type[Forward], nodes: list[Node], rows: Rows, where: Where) -> Iterator[Action]:
        """Runs nodes forward for some rows; what is not in `where` exists for these alone."""
        extent = self._extent(rows)
        for node in nodes:
            touched = self._touched[node.name]
            yield kind(node.name, touched.units(extent), (), _local(_places(touched.forward, extent, where)))
            for name in node.outputs if kind is Forward else ():
                if name in self.packed:
                    yield Pack(name, extent, _local(_places((name,), extent, where)))

    def _unpack(self, names: Iterable[str], rows: Rows, where: Where) -> Iterator[Action]:
        extent = self._extent(rows)
        for name in names:
            yield Unpack(name, extent, _local(_places((name,), extent, where)))

    def _reads(self, stage: Stage, where: Where) -> list[str]:
        """What a stage's backward reads and is not there."""
        names = dict.fromkeys(name for node in reversed(stage.nodes) for name in node.backward_reads)
        return [name for name in names if name not in where and self.graph.tensors[name].kind == "activation"]

    def _from_before(self, stage: Stage, where: Where) -> set[str]:
        """What must exist before a stage is walked backward: what it reads, or brings back its own from."""
        reads = self._reads(stage, where)
        if not stage.by_rows:
            return set(reads)
        own = [node for node in self._wanted(reads, where, self.packed)[0] if node.name in stage.names]
        sources = {name for node in own for name in node.inputs if name not in where}
        return (sources | set(reads)) - stage.made

    def _stage_backward(self, stage: Stage, outer: Rows, where: Where) -> Iterator[Action]:
        nodes, unpacked = self._wanted(self._reads(stage, where), where, self.packed)
        backward = [node for node in reversed(stage.nodes) if self.effects.runs_backward(node)]
        for rows in self._inner(stage, outer):
            yield from self._unpack(sorted(unpacked), rows, where)
            yield from self._run(Recompute, nodes, rows, where)
            for node in backward:
                yield from self._node_backward(node, outer, rows, where)

    def _node_backward(self, node: Node, outer: Rows, rows: Rows, where: Where) -> Iterator[Action]:
        extent, beyond, touched = self._extent(rows), self._extent(outer), self._touched[node.name]
        gradients = [(name, beyond if crosses else extent) for name, crosses in touched.gradients]
        places = [*_places(touched.backward, extent, where), *gradients]
        yield Backward(node.name, touched.units(extent), (), _local(places))
        for into, part in touched.parts:
            yield Reduce(into, local(part, extent) if extent else part, extent)


def _places(names: Iterable[str], extent: Rows | None, where: Where) -> list[tuple[str, Rows | None]]:
    """Tensors with their rows: those that `where` has, else `extent`."""
    return [(name, where.get(name, extent)) for name in names]


def _local(places: Iterable[tuple[str, Rows | None]]) -> Local:
    """Those places that are not whole."""
    return tuple([(name, rows) for name, rows in places if rows is not None])


def _cut(rows: Rows, step: int) -> Iterator[Rows]:
    for start in range(rows[0], rows[1], step):
        yield start, min(start + step, rows[1])
