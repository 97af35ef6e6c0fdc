"""The bound: no plan undercuts it, it is 0 where all fits, and the planner is near it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.policy.bound import certify, lower_bound
from fastbp.policy.cost import COSTS
from fastbp.policy.named import make_plan
from fastbp.policy.optimal import Planner
from fastbp.policy.rotor import Rotor
from fastbp.schedule.plan import Plan, Slices
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import simulate

GRAPHS = {
    "one block": decoder_graph(DecoderConfig(1, 32, 2, 96, 64, 97), 2),
    "blocks": decoder_graph(DecoderConfig(4, 32, 2, 128, 64, 97), 1),
    "sequences": decoder_graph(DecoderConfig(3, 24, 3, 50, 9, 33), 4),
    "materialised": decoder_graph(DecoderConfig(3, 16, 2, 64, 40, 97, attention="materialised"), 2),
    "large head": decoder_graph(DecoderConfig(2, 16, 2, 64, 40, 5000), 2),
    "one token": decoder_graph(DecoderConfig(2, 16, 2, 32, 1, 20), 5),
}
PRESETS = {"small": 12, "medium": 8, "gpt2": 1}


@pytest.mark.parametrize("name", GRAPHS)
@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(data=st.data())
def test_no_plan_that_is_drawn_undercuts_the_bound(name: str, data: st.DataObject) -> None:
    graph = GRAPHS[name]
    tensors = sorted(graph.read_by_backward)
    shares = data.draw(st.sampled_from(["few", "half", "most"]))
    drawn = data.draw(st.frozensets(st.sampled_from(tensors), max_size=6 if shares != "half" else len(tensors)))
    keep = graph.read_by_backward - drawn if shares == "most" else drawn
    slices = st.builds(Slices, st.integers(1, 5), st.sampled_from([1, 3, 8, 16, 64]))
    walks = tuple(data.draw(st.one_of(st.none(), slices)) for _ in range(graph.blocks))
    found = simulate(training_schedule(graph, Plan("drawn", keep, data.draw(st.sampled_from([1, 5, 16, 999])), walks)))
    bound = lower_bound(graph, found.peak_bytes)
    assert bound.flops is not None
    assert bound.flops <= found.recomputed_flops


@pytest.mark.parametrize("name", ["blocks", "sequences", "materialised"])
def test_no_named_policy_undercuts_the_bound(name: str) -> None:
    graph = GRAPHS[name]
    rotor = Rotor(graph, COSTS["flops"])
    named = ("full", "full_last", "every(2)", "dots", "selective(mlp, core_attn)", "revolve(1)", "revolve(2)")
    plans = [make_plan(graph, policy) for policy in named]
    plans += filter(None, (rotor.search(rotor.most * part // 12) for part in range(1, 13)))
    for plan in plans:
        found = simulate(training_schedule(graph, plan))
        bound = lower_bound(graph, found.peak_bytes)
        assert bound.flops is not None
        assert bound.flops <= found.recomputed_flops


@pytest.mark.parametrize("name", GRAPHS)
def test_the_planner_is_never_below_it_and_it_never_rises_with_the_budget(name: str) -> None:
    planner = Planner(GRAPHS[name], COSTS["flops"])
    low, high = planner.smallest_bytes, planner.largest_bytes
    last = None
    for budget in range(low, high + 1, max(1, (high - low) // 16)):
        found = certify(GRAPHS[name], budget, planner)
        assert found.bound.optimal
        assert found.bound.flops is not None
        if found.gap is not None:  # below the smallest by what its layout needs more
            assert found.gap >= 0
        tolerance = 2e-3 * found.update_flops  # the solver stops within a share of its optimum
        assert last is None or found.bound.flops <= last + tolerance
        last = found.bound.flops


@settings(max_examples=15, derandomize=True, deadline=None, database=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(2, 150), st.integers(1, 3), st.integers(2, 40))
def test_any_shape(blocks: int, batch: int, context: int, heads: int, vocab: int) -> None:
    graph = decoder_graph(DecoderConfig(blocks, 12 * heads, heads, 40, context, vocab), batch)
    planner = Planner(graph, COSTS["flops"])
    low, high = planner.smallest_bytes, planner.largest_bytes
    for budget in (low, low + (high - low) // 3, low + 2 * (high - low) // 3):
        assert (certify(graph, budget, planner).gap or 0) >= 0


@pytest.mark.parametrize("name", GRAPHS)
def test_it_is_0_where_everything_fits(name: str) -> None:
    graph = GRAPHS[name]
    everything = simulate(training_schedule(graph, make_plan(graph, "save_all"))).peak_bytes
    assert lower_bound(graph, everything).flops == 0


@pytest.mark.parametrize("name", GRAPHS)
def test_a_budget_below_what_must_be_live_has_no_bound(name: str) -> None:
    graph = GRAPHS[name]
    assert lower_bound(graph, 0).flops is None
    assert lower_bound(graph, 2 * graph.bytes_of("final.x") - 64).flops is None
    assert certify(graph, 0).gap is None
    smallest = Planner(graph, COSTS["flops"]).smallest_bytes
    assert lower_bound(graph, smallest).flops is not None


def test_a_solver_that_is_stopped_bounds_nothing_too_high() -> None:
    graph = decoder_graph(DecoderConfig.preset("medium"), 8)
    stopped, finished = lower_bound(graph, 16 << 20, seconds=0), lower_bound(graph, 28 << 20)
    assert not stopped.optimal
    assert stopped.flops is not None
    assert finished.optimal


@pytest.mark.parametrize("preset", PRESETS)
def test_the_planner_is_within_2_percent_of_an_update_at_five_budgets(preset: str) -> None:
    graph = decoder_graph(DecoderConfig.preset(preset), PRESETS[preset], workers=2)
    planner = Planner(graph, COSTS["flops"])
    low, high = planner.smallest_bytes, planner.largest_bytes
    for sixth in range(1, 6):
        found = certify(graph, low + (high - low) * sixth // 6, planner)
        assert found.bound.optimal
        assert found.gap is not None
        assert 0 <= found.gap <= 0.02
