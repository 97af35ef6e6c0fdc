"""A decoder as a chain of blocks that are all alike: what a block costs and the bytes that it takes, for planners that
look at nothing within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fastbp.graph.graph import Graph
from fastbp.policy.cost import AGAIN, Cost
from fastbp.policy.live_sets import Live, Prices, live_sets
from fastbp.schedule.actions import Action, Forward, Recompute
from fastbp.schedule.effects import Effects
from fastbp.schedule.plan import Plan, head_rows
from fastbp.schedule.schedule import block_actions, head_actions
from fastbp.schedule.simulate import padded

SIZES = ("S", "E", "walk", "back", "all", "run", "run_on", "head")


@dataclass(frozen=True)
class Chain:
    """S is the size of a block's input, E that of what else its backward reads. The others are the most that is live
    while a block is brought back and walked backward (walk), walked where everything is there (back), run forward where
    everything stays (all) or nothing does (run; run_on where it may forget its input too), and at the head: the
    stream's gradient among it, the block's input left out but for run_on. `forward` is the cost of running a block,
    `again` that of what its backward reads.
    """

    S: int
    E: int
    walk: int
    back: int
    all: int
    run: int
    run_on: int
    head: int
    forward: int
    again: int

    def in_units(self, unit: int) -> Chain:
        """Sizes in units, rounded up."""
        return replace(self, **{name: -(-getattr(self, name) // unit) for name in SIZES})


def chain_of(graph: Graph, cost: Cost) -> Chain:
    """The chain of a graph's blocks, walked whole."""
    effects = Effects(graph)
    nodes = graph.nodes_of_block[0]
    costs = {node.name: cost.of(graph, node, AGAIN, graph.tokens) for node in nodes}
    x = nodes[0].inputs[0]
    others = frozenset(name for node in nodes for name in node.outputs) & graph.read_by_backward - {nodes[-1].name}
    run: list[Action] = [Recompute(node.name) for node in nodes]
    walk = list(block_actions(graph, Plan("", frozenset({x}), 1), effects, 0))
    back = list(block_actions(graph, Plan("", others | {x}, 1), effects, 0))

    def peaks(actions: Sequence[Action], input_too: bool = False) -> list[int]:
        """Bytes live at each action."""
        prices, stream = Prices(graph, effects, {"whole": graph.tokens}), effects.buffer(f"d:{nodes[-1].name}")
        sets = live_sets(actions, Plan("", frozenset(), 1), effects, {}, stream)
        left_out = frozenset() if input_too else frozenset({(x, "whole")})
        return [prices.peak([Live(live.held - left_out, live.scratch)]) for live in sets]

    everything = peaks([*run, *back])
    return Chain(
        S=padded(graph.bytes_of(x)),
        E=sum(padded(graph.bytes_of(name)) for name in others),
        walk=max(peaks(walk)),
        back=max(everything[len(run) :]),
        all=max(everything[: len(run)]),
        run=max(peaks(run)),
        run_on=max(peaks(run, input_too=True)),
        head=_head_bytes(graph, effects),
        forward=sum(costs.values()),
        again=sum(costs[action.node] for action in walk if isinstance(action, Recompute)),
    )


def _head_bytes(graph: Graph, effects: Effects) -> int:
    """The most that is live at the head, where the final norm's tensors are kept."""
    norm = graph.nodes[-2]
    plan = Plan("", frozenset((*norm.inputs, *norm.outputs)), head_rows(graph))
    actions = [Forward(norm.name), *head_actions(graph, plan, effects)]
    sizes = {stop - start for start, stop in filter(None, map(effects.token_rows, actions))}
    sets = live_sets(actions, plan, effects, {size: str(size) for size in sizes}, norm.inputs[0])
    return Prices(graph, effects, {"whole": graph.tokens, **{str(size): size for size in sizes}}).peak(sets)
