"""Advice is what real plans need and cost."""

from __future__ import annotations

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.memory.layout import lay_out, layout_bytes
from fastbp.policy.advice import DROPS, WORTH, cheapest_drops, planned_instead
from fastbp.policy.explain import changed
from fastbp.policy.named import make_plan
from fastbp.policy.optimal import Planner
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import Simulation, simulate

GRAPH = decoder_graph(DecoderConfig(4, 32, 2, 128, 16, 64), 4)
PLANNER = Planner(GRAPH)


def simulated(policy: str) -> Simulation:
    return simulate(training_schedule(GRAPH, make_plan(GRAPH, policy)))


@pytest.mark.parametrize("policy", ["save_all", "selective(gelu, layernorm)", "full"])
def test_a_drop_frees_and_costs_what_it_says(policy: str) -> None:
    before = simulated(policy)
    found = cheapest_drops(before)
    assert 0 < len(found) <= DROPS
    for each in found:
        plan = changed(GRAPH, before.schedule.plan, f"{each.what}=recompute")
        after = simulate(training_schedule(GRAPH, plan))
        assert each.peak_bytes == lay_out(after).size_bytes
        assert each.extra_flops_share == after.extra_flops_share
        assert before.peak_bytes - after.peak_bytes >= WORTH * before.peak_bytes


def test_the_cheapest_byte_comes_first() -> None:
    before = simulated("save_all")
    prices = [each.extra_flops_share / (before.peak_bytes - each.peak_bytes) for each in cheapest_drops(before)]
    assert prices == sorted(prices)
    tried = [
        simulate(training_schedule(GRAPH, changed(GRAPH, before.schedule.plan, f"{name}=recompute")))
        for name in ("u", "qkv", "o", "mid", "ln1", "ln2", "g")
    ]
    others = [
        t.extra_flops_share / (before.peak_bytes - t.peak_bytes) for t in tried if t.peak_bytes < before.peak_bytes
    ]
    assert prices[0] == pytest.approx(min(others))


def test_a_rule_is_compared_with_the_planner_in_the_same_bytes() -> None:
    plan, peak = make_plan(GRAPH, "full"), layout_bytes(GRAPH, make_plan(GRAPH, "full"))
    found = planned_instead(PLANNER, plan, peak)
    assert found is not None
    assert found.peak_bytes <= peak
    assert found.extra_flops_share < simulated("full").extra_flops_share


def test_half_the_bytes_of_what_keeps_everything() -> None:
    plan, peak = make_plan(GRAPH, "save_all"), simulated("save_all").peak_bytes
    found = planned_instead(PLANNER, plan, peak)
    assert found is not None
    planned = simulated(f"optimal({found.what})")
    assert found.peak_bytes == lay_out(planned).size_bytes <= peak // 2 + 1024
    assert found.extra_flops_share == planned.extra_flops_share > 0


def test_below_the_smallest_budget_there_is_no_advice() -> None:
    smallest = PLANNER.smallest_bytes
    plan = PLANNER.plan(smallest)
    assert planned_instead(PLANNER, plan, layout_bytes(GRAPH, plan)) is None
