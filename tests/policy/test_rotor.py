"""rotor: its cost and peak are what simulate finds, its budget is kept, and no tree over whole blocks is cheaper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastbp.base.errors import DoesNotFit
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.memory.layout import lay_out
from fastbp.policy.cost import COSTS
from fastbp.policy.named import make_plan
from fastbp.policy.rotor import Rotor, rotor_plan
from fastbp.schedule.plan import Plan, head_rows
from fastbp.schedule.reversal import Reversal, Split, from_forward
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import Simulation, simulate

GRAPHS = {
    "one block": decoder_graph(DecoderConfig(1, 16, 2, 64, 16, 40), 2),
    "two": decoder_graph(DecoderConfig(2, 16, 2, 24, 16, 40), 1),
    "five": decoder_graph(DecoderConfig(5, 16, 2, 64, 16, 40), 3),
    "large head": decoder_graph(DecoderConfig(4, 16, 2, 64, 16, 5000), 2),
    "materialised": decoder_graph(DecoderConfig(4, 16, 2, 64, 40, 40, attention="materialised"), 2),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_foreseen_is_what_simulate_finds(name: str) -> None:
    graph = GRAPHS[name]
    rotor = Rotor(graph, COSTS["flops"])
    top = rotor.most + rotor.chain.S
    last = None
    for units in range(0, top + 1, max(1, top // 60)):
        plan = rotor.search(units)
        if plan is None:
            assert last is None
            continue
        found = simulate(training_schedule(graph, plan))
        left = min(units, rotor.most) - rotor.chain.S
        assert found.recomputed_flops == rotor.outer[graph.blocks][0][left]
        assert found.peak_bytes <= units * rotor.unit
        assert last is None or found.recomputed_flops <= last
        last = found.recomputed_flops
    assert last == 0


@pytest.mark.parametrize("cost", COSTS)
def test_the_layout_fits_and_the_cost_never_rises_with_the_budget(cost: str) -> None:
    graph, last = GRAPHS["five"], None
    top = simulate(training_schedule(graph, make_plan(graph, "save_all"))).peak_bytes
    for budget in range(top // 5, 2 * top, top // 23):
        try:
            plan = rotor_plan(graph, budget, COSTS[cost])
        except DoesNotFit:
            assert last is None
            continue
        found = simulate(training_schedule(graph, plan))
        assert lay_out(found).size_bytes <= budget
        assert plan.budget_bytes == budget
        assert last is None or found.recomputed_flops <= last
        last = found.recomputed_flops
    assert last == 0


def trees(start: int, stop: int) -> Iterator[Reversal]:
    """Every reversal of the blocks."""
    if stop - start == 1:
        yield start
    for cut in range(start + 1, stop):
        for earlier in trees(start, cut):
            for later in trees(cut, stop):
                yield Split(earlier, later)
                if cut == start + 1:
                    yield Split(earlier, later, True)


def everything(name: str) -> Iterator[Simulation]:
    """Every tree, a part of one block on the way of the first pass kept whole or not."""
    graph = GRAPHS[name]
    outside = {tensor for tensor in graph.read_by_backward if not tensor.startswith("blocks.")}
    for tree in trees(0, graph.blocks):
        spine = list(from_forward(tree))
        alone = [block for block in spine if block + 1 in (*spine, graph.blocks)]
        for whole in range(1 << len(alone)):
            blocks = {block for i, block in enumerate(alone) if whole >> i & 1}
            keep = outside | {f"blocks.{block}.x" for block in spine}
            keep |= {tensor for tensor in graph.read_by_backward for i in blocks if tensor.startswith(f"blocks.{i}.")}
            plan = Plan("", frozenset(keep), head_rows(graph), reversal=tree)
            yield simulate(training_schedule(graph, plan))


@pytest.mark.parametrize("name", ["one block", "two", "large head", "materialised"])
def test_no_tree_is_cheaper_by_more_than_rounding(name: str) -> None:
    rotor = Rotor(GRAPHS[name], COSTS["flops"])
    rounding = (2 * GRAPHS[name].blocks + 3) * rotor.unit
    for found in everything(name):
        plan = rotor.search((found.peak_bytes + rounding) // rotor.unit)
        assert plan is not None
        assert simulate(training_schedule(GRAPHS[name], plan)).recomputed_flops <= found.recomputed_flops


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DoesNotFit, match=r"^no plan of rotor fits into 1\.0 KiB of activations: ask for optimal"):
        rotor_plan(GRAPHS["five"], 1024, COSTS["flops"])
