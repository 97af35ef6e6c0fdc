"""The live sets of a block that is walked in few slices, from which those of one in many are priced.

What is live at an action does not depend on the size of slices, nor on how many there are from three on. Of three, the
one between the others has the most: what the first slice began is there, and what the last one ends. So it has, at each
of its actions, what the first of two slices or the last has there, and no third is walked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.graph.graph import Graph
from fastbp.policy.live_sets import Live, largest, live_sets
from fastbp.schedule.actions import Action, Forward, Pack, Recompute, Unpack, written
from fastbp.schedule.block import Block
from fastbp.schedule.block_walk import BlockWalk
from fastbp.schedule.effects import Effects
from fastbp.schedule.local import Rows
from fastbp.schedule.plan import Plan, Slices

MANY = 3
"""So many slices, or more."""


@dataclass(frozen=True)
class Walked:
    """The largest live sets of a walk, forward and backward, and the nodes that run again."""

    forward: tuple[Live, ...]
    without_input: tuple[Live, ...]
    backward: tuple[Live, ...]
    again: tuple[tuple[str, int], ...]
    """Nodes that run again, and how often all rows of them do."""
    unpacked: tuple[tuple[str, int], ...]
    """The same of tensors that are unpacked."""


def block_shape(graph: Graph) -> tuple[str, ...]:
    """What decides how a block is walked: its ops."""
    return tuple(node.op_name for node in graph.nodes_of_block[0])


@cache
def _block(shape: tuple[str, ...], batch: int, context: int) -> Block:
    """A block of such ops, as small as can be."""
    attention = "tiled" if any(name.startswith("tiled") for name in shape) else "materialised"
    dropout = 0.5 if any("dropout" in name for name in shape) else 0.0
    config = DecoderConfig(1, 2, 1, 8, context, 2, attention=attention, dropout=dropout)
    graph = decoder_graph(config, batch)
    return Block(graph, Effects(graph), 0)


@cache
def walked_in(
    shape: tuple[str, ...], keep: frozenset[str], packed: frozenset[str], sequences: int, rows: int
) -> Walked:
    """The live sets of a block of such ops that keeps some tensors, `packed` among them as bfloat16, in so many slices
    of sequences and in each so many of rows; both at most MANY.
    """
    one_between = MANY in (sequences, rows) and 2 not in (sequences, rows)
    if one_between:
        sequences, rows = min(sequences, 2), min(rows, 2)
    block = _block(shape, sequences, max(rows, 2))
    graph, effects, context = block.graph, block.effects, block.sequence
    kept, halves = (frozenset(f"blocks.0.{name}" for name in names) for names in (keep | {"x"}, packed))
    plan = Plan("", kept, 1, packed=halves)
    walk = BlockWalk(block, plan, Slices(1, 1 if rows > 1 else context))
    forward, backward = list(walk.forward()), list(walk.backward())
    if walk.input in halves:
        forward, backward = [Pack(walk.input), *forward], [Unpack(walk.input), *backward]
    sets = live_sets([*forward, *backward], plan, effects, {1: "inner", context: "outer"}, block.stream)
    there, back = sets[: len(forward)], sets[len(forward) :]
    readers = {node.name for node in graph.nodes if walk.input in node.inputs}
    last = max(i for i, action in enumerate(forward) if isinstance(action, Forward) and action.node in readers)
    left = [Live(live.held - {(walk.input, "whole")}, live.scratch) for live in there[last + 1 :]]
    without = [*there[: last + 1], *left]
    if one_between:
        alike = list(_alike(forward))
        there, without, back = _between(alike, there), _between(alike, without), _between(_alike(backward), back)
    recomputed = ((action.node, effects.token_rows(action)) for action in backward if isinstance(action, Recompute))
    unpacked = ((action.tensor, action.rows) for action in backward if isinstance(action, Unpack))
    return Walked(
        largest(there), largest(without), largest(back),
        _times(recomputed, graph.tokens), _times(unpacked, graph.tokens),
    )  # fmt: skip


def _alike(actions: Iterable[Action]) -> Iterator[Hashable]:
    """For every action what it has in common with those of other slices that do the same."""
    turns: Counter[str] = Counter()
    for action in actions:
        name = written(action)
        yield name.partition("[")[0], turns[name]
        turns[name] += 1


def _between(alike: Iterable[Hashable], sets: Iterable[Live]) -> list[Live]:
    """The live sets of a slice between the first and the last: those of all slices, one upon the other."""
    found: dict[Hashable, Live] = {}
    for action, live in zip(alike, sets, strict=True):
        known = found.get(action)
        found[action] = Live(known.held | live.held, live.scratch) if known else live
    return list(found.values())


def _times(calls: Iterable[tuple[str, Rows | None]], tokens: int) -> tuple[tuple[str, int], ...]:
    """By name, how often all tokens are in calls."""
    found: Counter[str] = Counter()
    for name, rows in calls:
        found[name] += rows[1] - rows[0] if rows else tokens
    return tuple((name, total // tokens) for name, total in found.items())
