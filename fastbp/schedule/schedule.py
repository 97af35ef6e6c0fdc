"""Plan → schedule: the flat tuple of actions, in order.

Forward runs every node once. Backward walks the nodes in reverse; what it reads and is not there is recomputed first,
recursively from what is, and then stays until its last reader. So nothing is recomputed that no backward reads (early
stop). Buffers are freed right after their last use, and taken over where an op may work in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fastbp.graph.graph import Graph, Node
from fastbp.schedule.actions import Action, Backward, Forward, Free, Recompute, Reduce, Rows
from fastbp.schedule.effects import Effects
from fastbp.schedule.plan import Plan


@dataclass(frozen=True)
class Schedule:
    """The actions of one pass over a batch, and the graph that they run."""

    graph: Graph
    plan: Plan
    actions: tuple[Action, ...]


def training_schedule(graph: Graph, plan: Plan) -> Schedule:
    """Forward and backward under a plan."""
    effects = Effects(graph)
    actions = [*_forward(graph, plan, training=True), *_backward(graph, plan, effects)]
    return Schedule(graph, plan, tuple(_with_frees(actions, plan, effects)))


def evaluation_schedule(graph: Graph, plan: Plan) -> Schedule:
    """Forward alone, up to the losses; nothing is kept."""
    nothing = replace(plan, policy="evaluation", keep=frozenset())
    actions = list(_forward(graph, plan, training=False))
    return Schedule(graph, nothing, tuple(_with_frees(actions, nothing, Effects(graph))))


def _slices(node: Node, plan: Plan) -> Iterator[Rows | None]:
    if node.op_name != "linear_cross_entropy" or plan.head_rows >= node.dims.N:
        yield None
        return
    for start in range(0, node.dims.N, plan.head_rows):
        yield start, min(start + plan.head_rows, node.dims.N)


def _forward(graph: Graph, plan: Plan, training: bool) -> Iterator[Action]:
    for node in graph.nodes:
        if not (training and node.op.backward_yields_outputs):
            for rows in _slices(node, plan):
                yield Forward(node.name, rows)


def _backward(graph: Graph, plan: Plan, effects: Effects) -> Iterator[Action]:
    available = set(plan.keep)
    for node in reversed(graph.nodes):
        if not effects.runs_backward(node):
            continue
        for name in node.backward_reads:
            yield from _bring_back(graph, name, available)
        for rows in _slices(node, plan):
            yield Backward(node.name, rows)
        for port in node.op.differentiable:
            tensor = node.ports[port]
            if graph.tensors[tensor].kind == "activation":
                target, total = effects.contribution(node, tensor), effects.buffer(f"d:{tensor}")
                if target != f"d:{tensor}":
                    yield Reduce(total, target)


def _bring_back(graph: Graph, name: str, available: set[str]) -> Iterator[Action]:
    """Recomputes a tensor, and first whatever it is computed from."""
    if graph.tensors[name].kind != "activation" or name in available:
        return
    node = graph.producer[name]
    for source in node.inputs:
        yield from _bring_back(graph, source, available)
    yield Recompute(node.name)
    available.update(node.outputs)


def _with_frees(actions: list[Action], plan: Plan, effects: Effects) -> Iterator[Action]:
    """Adds a Free after the last use of every buffer, or lets the next tensor take it over."""
    last_use = _last_uses(actions, plan, effects)
    live: set[str] = set()
    for i, action in enumerate(actions):
        effect = effects.of(action)
        over = [name for name in dict.fromkeys((*effect.reads, *effect.writes)) if i in last_use[name]]
        takes = _takes(action, effects, over, live)
        live.update(effect.writes)
        yield replace(action, takes=takes) if takes and isinstance(action, Forward | Backward) else action
        taken = {old for _, old in takes}
        live.difference_update(over)
        for name in over:
            if name not in taken:
                yield Free(name)


def _last_uses(actions: list[Action], plan: Plan, effects: Effects) -> dict[str, set[int]]:
    """For every buffer the actions after which it is not needed until it is written anew."""
    last: dict[str, int] = {}
    over: dict[str, set[int]] = {}
    for i, action in enumerate(actions):
        effect = effects.of(action)
        for name in effect.writes:
            if isinstance(action, Recompute) and name not in plan.keep and name in last:
                over[name].add(last[name])
        for name in (*effect.reads, *effect.writes):
            last[name] = i
            over.setdefault(name, set())
    for name, i in last.items():
        over[name].add(i)
    return over


def _takes(action: Action, effects: Effects, over: list[str], live: set[str]) -> tuple[tuple[str, str], ...]:
    """The tensors of this action that are written over one that nobody needs any more."""
    if not isinstance(action, Forward | Backward) or action.rows is not None:
        return ()
    pairs = effects.in_place(action)
    return tuple((new, old) for new, old in pairs if old in over and new not in live and new not in over)
