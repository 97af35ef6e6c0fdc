"""Few slices tell what is live in many: walked in each number of them, a block has the same largest live sets."""

from __future__ import annotations

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.policy.few_slices import MANY, block_shape, walked_in
from fastbp.policy.live_sets import largest, live_sets
from fastbp.policy.options import keep_sets
from fastbp.schedule.block import Block
from fastbp.schedule.block_walk import BlockWalk
from fastbp.schedule.effects import Effects
from fastbp.schedule.plan import Plan, Slices


def block_of(attention: str, dropout: float, sequences: int, rows: int) -> Block:
    """One whose slices of rows are single tokens."""
    config = DecoderConfig(1, 4, 2, 8, max(rows, 2), 3, attention=attention, dropout=dropout)
    graph = decoder_graph(config, sequences)
    return Block(graph, Effects(graph), 0)


@pytest.mark.parametrize(("attention", "dropout"), [("tiled", 0.0), ("tiled", 0.5), ("materialised", 0.5)])
@pytest.mark.parametrize(
    ("sequences", "rows"), [(1, 1), (1, 2), (1, 5), (2, 1), (2, 2), (2, 5), (5, 1), (5, 2), (5, 4)]
)
@pytest.mark.parametrize("half", [False, True])
def test_many_slices_are_as_few(attention: str, dropout: float, sequences: int, rows: int, half: bool) -> None:
    block = block_of(attention, dropout, sequences, rows)
    every = frozenset(name.removeprefix("blocks.0.") for name in block.made & block.graph.read_by_backward)
    for keep in keep_sets(every):
        packed = keep - {"lse"} if half else frozenset[str]()
        names = frozenset(f"blocks.0.{name}" for name in (*keep, "x"))
        plan = Plan("", names, 1, packed=frozenset(f"blocks.0.{name}" for name in packed))
        walk = BlockWalk(block, plan, Slices(1, 1 if rows > 1 else block.sequence))
        found = walked_in(block_shape(block.graph), keep, packed, min(sequences, MANY), min(rows, MANY))
        forward, backward = list(walk.forward()), list(walk.backward())
        levels = {1: "inner", block.sequence: "outer"}
        sets = live_sets([*forward, *backward], plan, block.effects, levels, block.stream)
        assert set(found.forward) == set(largest(sets[: len(forward)]))
        assert set(found.backward) == set(largest(sets[len(forward) :]))
