"""Plan → schedule: the flat tuple of actions, in order.

Forward runs every node once. Backward walks the nodes in reverse; what it reads and is not there is recomputed first,
recursively from what is, and then stays until its last reader. So nothing is recomputed that no backward reads (early
stop). A block that the plan slices is walked as fastbp/schedule/block_walk.py says; the final norm goes with the
head's slices where it is not kept, and then runs once, behind the last block's forward. Buffers are freed right after
their last use, and taken over where an op may work in place. A plan with a reversal walks the blocks in its order, and
forgets what it brought back. What the plan packs is stored as bfloat16 right behind the node that makes it, and brought
back as a recomputation would bring it, by an Unpack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

from fastbp.graph.graph import Graph, Node
from fastbp.schedule.actions import (
    Action,
    Backward,
    BringsBack,
    Forward,
    Free,
    Local,
    Pack,
    Recompute,
    Reduce,
    RunsNode,
    Unpack,
)
from fastbp.schedule.block import Block
from fastbp.schedule.block_walk import BlockWalk
from fastbp.schedule.effects import Effect, Effects, gradient
from fastbp.schedule.local import Rows, parted
from fastbp.schedule.plan import Plan, require_packable
from fastbp.schedule.reversal import Reversal, Split, first_block


@dataclass(frozen=True)
class Schedule:
    """The actions of one pass over a batch, and the graph that they run."""

    graph: Graph
    plan: Plan
    actions: tuple[Action, ...]


def training_schedule(graph: Graph, plan: Plan, effects: Effects | None = None) -> Schedule:
    """Forward and backward under a plan. `effects` are the graph's, where some are known. Raises InputError for a lossy
    plan in float64.
    """
    if plan.packed:
        require_packable(graph, plan.packed)
    walk = _Walk(graph, plan, effects or Effects(graph))
    actions = [*walk.forward(), *walk.backward()]
    return Schedule(graph, plan, tuple(with_frees(actions, plan, walk.effects)))


def evaluation_schedule(graph: Graph, plan: Plan) -> Schedule:
    """Forward alone, up to the losses; nothing is kept."""
    nothing = replace(plan, policy="evaluation", keep=frozenset(), packed=frozenset())
    walk = _Walk(graph, nothing, Effects(graph))
    actions = [*walk.forward(), *walk.losses()]
    return Schedule(graph, nothing, tuple(with_frees(actions, nothing, walk.effects)))


def head_actions(graph: Graph, plan: Plan, effects: Effects) -> Iterator[Action]:
    """The head's backward, and the final norm's, where everything before is there."""
    return _Walk(graph, plan, effects).head_backward(set(plan.exact))


def block_actions(graph: Graph, plan: Plan, effects: Effects, block: int) -> Iterator[Action]:
    """A block's backward, where what the plan keeps is there."""
    return _Walk(graph, plan, effects).block_backward(block, set(plan.exact))


class _Walk:
    """The order of the actions before anything is freed."""

    def __init__(self, graph: Graph, plan: Plan, effects: Effects) -> None:
        self.graph, self.plan, self.effects = graph, plan, effects
        self.norm, self.head = graph.nodes[-2:]
        slices = ((block, plan.slices_of(block)) for block in range(graph.blocks))
        self.blocks = {block: BlockWalk(Block(graph, effects, block), plan, found) for block, found in slices if found}

    @property
    def norm_with_head(self) -> bool:
        """Whether the final norm runs in the head's slices."""
        return self.head.inputs[0] not in self.plan.keep

    def forward(self) -> Iterator[Action]:
        """Everything before the head, whose backward yields its output."""
        walked = set()
        for node in self.graph.nodes[:-2]:
            walk = self.blocks.get(node.block) if node.block is not None else None
            if walk is None:
                yield Forward(node.name)
                yield from (Pack(name) for name in node.outputs if name in self.plan.packed)
            elif node.block not in walked:
                walked.add(node.block)
                yield from walk.forward()
                yield from (Pack(name) for name in (walk.output,) if name in self.plan.packed)
        if not self.norm_with_head:
            yield Forward(self.norm.name)

    def losses(self) -> Iterator[Action]:
        """The head forward."""
        for rows in self._head_slices():
            if self.norm_with_head:
                yield Forward(self.norm.name, rows, local=self._head_local(rows))
            yield Forward(self.head.name, rows, local=self._head_local(rows))

    def backward(self) -> Iterator[Action]:
        available = set(self.plan.exact)
        yield from self.head_backward(available)
        if self.plan.reversal is None:
            for block in reversed(range(self.graph.blocks)):
                yield from self.block_backward(block, available)
        else:
            yield from self._reverse(self.plan.reversal, available)
        yield from self._node_backward(self.graph.nodes[0], available)

    def _reverse(self, reversal: Reversal, available: Set[str]) -> Iterator[Action]:
        """A part of the blocks; what it brings back is forgotten behind it."""
        if not isinstance(reversal, Split):
            yield from self.block_backward(reversal, set(available))
            return
        ran, later = set(available), self._input(first_block(reversal.later))
        yield from self._bring_back(later, ran)
        yield from self._reverse(reversal.later, available | {later})
        yield from self._reverse(reversal.earlier, ran if reversal.whole else available)

    def _input(self, block: int) -> str:
        return self.graph.nodes_of_block[block][0].inputs[0]

    def block_backward(self, block: int, available: set[str]) -> Iterator[Action]:
        if walk := self.blocks.get(block):
            yield from self._bring_back(walk.input, available)
            yield from walk.backward()
        else:
            for node in reversed(self.graph.nodes_of_block[block]):
                yield from self._node_backward(node, available)

    def head_backward(self, available: set[str]) -> Iterator[Action]:
        """The head, and the final norm behind it: slice by slice where it goes with the head."""
        yield from self._bring_back(self.norm.inputs[0], available)
        for rows in self._head_slices():
            local = self._head_local(rows)
            if self.norm_with_head:
                yield Forward(self.norm.name, rows, local=local)
            yield Backward(self.head.name, rows, local=local)
            if self.norm_with_head:
                yield Backward(self.norm.name, rows, local=local)
        if not self.norm_with_head:
            for name in self.norm.backward_reads:
                yield from self._bring_back(name, available)
            yield Backward(self.norm.name)

    def _head_slices(self) -> Iterator[Rows | None]:
        rows, step = self.head.dims.N, self.plan.head_rows
        if step >= rows:
            yield None
        else:
            yield from ((start, min(start + step, rows)) for start in range(0, rows, step))

    def _head_local(self, rows: Rows | None) -> Local:
        """What the final norm makes, where it goes with the head."""
        if rows is None or not self.norm_with_head:
            return ()
        made = [name for name in self.norm.outputs if name not in self.plan.keep]
        return tuple((name, rows) for name in [*made, gradient(self.head.inputs[0])])

    def _node_backward(self, node: Node, available: set[str]) -> Iterator[Action]:
        if not self.effects.runs_backward(node):
            return
        for name in node.backward_reads:
            yield from self._bring_back(name, available)
        yield Backward(node.name)
        for port in node.op.differentiable:
            tensor = node.ports[port]
            target = self.effects.contribution(node, tensor)
            if self.graph.tensors[tensor].kind == "activation" and target != gradient(tensor):
                yield Reduce(self.effects.buffer(gradient(tensor)), target)

    def _bring_back(self, name: str, available: set[str]) -> Iterator[Action]:
        """Recomputes a tensor, and first whatever it is computed from."""
        if self.graph.tensors[name].kind != "activation" or name in available:
            return
        if name in self.plan.packed:
            available.add(name)
            yield Unpack(name)
            return
        node = self.graph.producer[name]
        walk = self.blocks.get(node.block) if node.block is not None else None
        for source in (walk.input,) if walk else node.inputs:
            yield from self._bring_back(source, available)
        if walk:
            yield from walk.again()
            available.add(name)
        else:
            yield Recompute(node.name)
            available.update(node.outputs)


def with_frees(actions: Sequence[Action], plan: Plan, effects: Effects) -> Iterator[Action]:
    """Adds a Free after the last use of every buffer, or lets the next tensor take it over."""
    for action, _, over in with_ends(actions, plan, effects):
        yield action
        for name in over:
            yield Free(name)


def with_ends(
    actions: Sequence[Action], plan: Plan, effects: Effects
) -> Iterator[tuple[Action, Effect, Sequence[str]]]:
    """Every action with what it takes over, its effect, and the buffers that are free behind it."""
    found = [effects.of(action) for action in actions]
    live: set[str] = set()
    for action, effect, over in zip(actions, found, _ends(actions, found, plan), strict=True):
        takes = _takes(effect, over, live) if over and effect.in_place else ()
        live.update(effect.writes)
        live.difference_update(over)
        if takes and isinstance(action, RunsNode):
            taken = {old for _, old in takes}
            yield (
                type(action)(action.node, action.rows, takes, action.local),
                effect,
                [name for name in over if name not in taken],
            )
        else:
            yield action, effect, over


def _ends(actions: Sequence[Action], found: Sequence[Effect], plan: Plan) -> list[list[str]]:
    """For every action the buffers that are not needed behind it until they are written anew."""
    needed: set[str] = set()
    ends = []
    for action, effect in zip(reversed(actions), reversed(found), strict=True):
        names = effect.reads + effect.writes
        over = [name for name in names if name not in needed]
        ends.append(list(dict.fromkeys(over)) if over else over)
        needed.update(names)
        if isinstance(action, BringsBack):
            needed.difference_update(name for name in effect.writes if _anew(name, effect.rows, plan))
    ends.reverse()
    return ends


def _anew(name: str, rows: Rows | None, plan: Plan) -> bool:
    """Whether a recomputation of some rows begins a tensor that is written again; a kept one gets the same bits where
    it lies.
    """
    tensor, part = parted(name)
    return tensor not in plan.exact and (rows[0] if rows else 0) == (part[0] if part else 0)


def _takes(effect: Effect, over: Sequence[str], live: set[str]) -> tuple[tuple[str, str], ...]:
    """The tensors that an action writes over one that nobody needs any more."""
    return tuple([(new, old) for new, old in effect.in_place if old in over and new not in live and new not in over])
