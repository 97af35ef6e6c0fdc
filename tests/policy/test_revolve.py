"""revolve: the binomial count of runs, no other tree needs fewer, and no more inputs are kept than there are slots."""

from __future__ import annotations

from functools import cache

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.policy.named import make_plan
from fastbp.policy.revolve import advances, revolve
from fastbp.schedule.actions import Backward, Forward
from fastbp.schedule.reversal import Split
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import simulate


@cache
def fewest(blocks: int, slots: int) -> int:
    """t by its recursion, over every place of the next slot."""
    if blocks == 1:
        return 0
    if slots == 1:
        return blocks * (blocks - 1) // 2
    return min(ahead + fewest(blocks - ahead, slots - 1) + fewest(ahead, slots) for ahead in range(1, blocks))


@pytest.mark.parametrize("blocks", range(1, 30))
def test_the_formula_is_the_recursions_minimum(blocks: int) -> None:
    for slots in range(1, blocks + 1):
        assert advances(blocks, slots) == fewest(blocks, slots)


@pytest.mark.parametrize("blocks", range(1, 13))
def test_blocks_run_as_often_as_the_formula_says_and_no_more_inputs_are_kept_than_slots(blocks: int) -> None:
    graph = decoder_graph(DecoderConfig(blocks, 4, 1, 8, 4, 16), 1)
    for slots in range(1, blocks + 1):
        schedule = training_schedule(graph, make_plan(graph, f"revolve({slots})"))
        runs = sum(isinstance(action, Forward) and action.node.endswith(".z") for action in schedule.actions)
        assert runs == advances(blocks, slots) + 1  # the last block's run leads to the loss
        simulation = simulate(schedule)
        for tick, action in enumerate(schedule.actions):
            if isinstance(action, Backward):
                live = {name for buffer in simulation.live_at(tick) for name in (buffer.name_at(tick),)}
                assert sum(name in {f"blocks.{i}.x" for i in range(blocks)} for name in live) <= slots + 1


def test_more_slots_than_blocks_are_as_many_as_blocks() -> None:
    graph = decoder_graph(DecoderConfig(3, 4, 1, 8, 4, 16), 1)
    assert make_plan(graph, "revolve(99)").reversal == make_plan(graph, "revolve(3)").reversal == revolve(3, 3)


def test_golden_trees() -> None:
    assert revolve(1, 1) == 0
    assert revolve(3, 1) == Split(Split(0, 1), 2)
    assert revolve(4, 2) == Split(0, Split(Split(1, 2), 3))
