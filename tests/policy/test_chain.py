"""The chain's sizes and costs are those of schedules that are simulated."""

from __future__ import annotations

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.graph.graph import Graph
from fastbp.policy.chain import chain_of
from fastbp.policy.cost import COSTS
from fastbp.policy.named import make_plan
from fastbp.schedule.actions import Backward, Recompute
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import simulate


def graph(attention: str) -> Graph:
    return decoder_graph(DecoderConfig(2, 16, 2, 40, 24, 30, attention=attention), 2)


def first_block_bytes(found: Graph, policy: str) -> int:
    """The most live while the first block is brought back and walked."""
    simulation = simulate(training_schedule(found, make_plan(found, policy)))
    return max(
        live
        for action, live in zip(simulation.schedule.actions, simulation.live_bytes, strict=True)
        if isinstance(action, Recompute | Backward) and found.by_name[action.node].block == 0
    )


@pytest.mark.parametrize("attention", ["tiled", "materialised"])
def test_sizes_are_what_simulate_finds(attention: str) -> None:
    found = graph(attention)
    chain = chain_of(found, COSTS["flops"])
    assert first_block_bytes(found, "full_last") == chain.walk + chain.S
    assert first_block_bytes(found, "save_all") == chain.back + chain.S
    kept = [
        simulate(training_schedule(found, make_plan(found, policy))).kept_bytes for policy in ("save_all", "full_last")
    ]
    assert kept[0] - kept[1] == 2 * chain.E
    assert chain.run <= chain.run_on <= chain.run + chain.S


def test_costs_are_those_of_the_policies() -> None:
    found = graph("tiled")
    chain = chain_of(found, COSTS["flops"])
    again = simulate(training_schedule(found, make_plan(found, "full_last"))).recomputed_flops
    assert again == 2 * chain.again
    assert chain.forward == sum(node.flops[0] for node in found.nodes if node.block == 0)


def test_units_are_rounded_up() -> None:
    chain = chain_of(graph("tiled"), COSTS["flops"])
    cut = chain.in_units(1000)
    assert (cut.S, cut.E) == (-(-chain.S // 1000), -(-chain.E // 1000))
    assert cut.forward == chain.forward
