"""A timeline says what the simulation says of every tick and buffer, and what its layout says of addresses."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.graph.graph import Graph
from fastbp.memory.layout import lay_out
from fastbp.memory.timeline import STAGES, Timeline, timeline
from fastbp.policy.explain import explain
from fastbp.policy.named import make_plan
from fastbp.schedule.actions import written
from fastbp.schedule.effects import Effects
from fastbp.schedule.plan import Plan, Slices
from fastbp.schedule.schedule import evaluation_schedule, training_schedule
from fastbp.schedule.simulate import CATEGORIES, Simulation, simulate

GRAPH = decoder_graph(DecoderConfig(3, 16, 2, 64, 64, 512), 4, workers=2)
POLICIES = ("save_all", "full", "every(2)", "selective(core_attn, gelu)", "revolve(1)", "optimal(240000)")


def simulation_of(policy: str, graph: Graph = GRAPH) -> Simulation:
    return simulate(training_schedule(graph, make_plan(graph, policy)))


def of(simulation: Simulation) -> Timeline:
    return timeline(simulation, lay_out(simulation))


def assert_agrees(found: Timeline, simulation: Simulation) -> None:
    """Every tick has the simulation's bytes by category, and the tensors that it says are live."""
    assert found.actions == tuple(written(action) for action in simulation.schedule.actions)
    for tick in range(len(found.actions)):
        by_category = {category: found.live_bytes[category][tick] for category in CATEGORIES}
        assert by_category == simulation.bytes_by_category(tick)
        assert sum(by_category.values()) == simulation.live_bytes[tick]
        live = sorted((buffer.name_at(tick), buffer.nbytes) for buffer in simulation.live_at(tick))
        held = [each for each in found.held if each.born <= tick < each.dies]
        now = {each.buffer: each for each in held}  # where one tensor takes over from another, both: the later counts
        assert sorted((each.tensor, found.buffers[each.buffer].nbytes) for each in now.values()) == live


@pytest.mark.parametrize("policy", POLICIES)
def test_every_tick_agrees_with_the_simulation(policy: str) -> None:
    simulation = simulation_of(policy)
    assert_agrees(of(simulation), simulation)


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(st.data())
def test_any_shape_and_any_plan(data: st.DataObject) -> None:
    blocks, heads, batch = (data.draw(st.integers(1, 3)) for _ in range(3))
    attention = data.draw(st.sampled_from(["tiled", "materialised"]))
    context, vocab = data.draw(st.integers(1, 12)), data.draw(st.integers(2, 70))
    config = DecoderConfig(blocks, 6 * heads, heads, 10, context, vocab, attention=attention)
    graph = decoder_graph(config, batch, workers=data.draw(st.integers(0, 2)))
    keep = data.draw(st.frozensets(st.sampled_from(sorted(graph.read_by_backward))))
    packable = sorted(name for name in keep if name.startswith("blocks."))
    packed = data.draw(st.frozensets(st.sampled_from(packable))) if packable else frozenset()
    slices = st.builds(Slices, st.integers(1, 3), st.sampled_from([1, 3, 8]))
    walks = tuple(data.draw(st.one_of(st.none(), slices)) for _ in range(blocks))
    plan = Plan("drawn", keep, data.draw(st.sampled_from([1, 5, 999])), walks, packed=packed)
    simulation = simulate(training_schedule(graph, plan))
    assert_agrees(of(simulation), simulation)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_last_read_is_the_last_action_that_reads_the_tensor_in_that_life(policy: str) -> None:
    simulation = simulation_of(policy)
    effects = Effects(GRAPH)
    reads = [effects.of(action).reads for action in simulation.schedule.actions]
    for each in of(simulation).held:
        # What is made at a tick is read from the next one on, but for a sum, which is there before.
        ticks = [tick for tick in range(each.born + 1, each.dies) if each.tensor in reads[tick]]
        assert each.last_read == (ticks[-1] if ticks else None), each


@pytest.mark.parametrize("policy", ["full", "optimal(240000)"])
def test_bringing_everything_back_once_costs_what_the_schedule_spends_on_it(policy: str) -> None:
    simulation = simulation_of(policy)
    found = of(simulation)
    again = {tick for tick, stage in enumerate(found.stages) if stage == "recompute"}
    first = {GRAPH.producer[tensor.name].outputs[0] for tensor in GRAPH.activations}
    spent = sum(each.flops for each in found.held if each.born in again and each.tensor.partition("[")[0] in first)
    assert 0 < spent <= simulation.recomputed_flops
    if policy == "full":
        assert spent == simulation.recomputed_flops
    for each in found.held:
        if each.tensor in GRAPH.producer:
            assert each.flops == explain(simulation, each.tensor).producer_flops
        elif found.buffers[each.buffer].category not in ("kept", "working"):
            assert each.flops == 0


def test_a_slice_costs_its_share_of_rows() -> None:
    simulation = simulation_of("optimal(240000)")
    sliced = [each for each in of(simulation).held if each.tensor.startswith("blocks.1.u[")]
    assert sliced
    for each in sliced:
        start, stop = map(int, each.tensor.partition("[")[2].rstrip("]").split(":"))
        assert each.flops * GRAPH.tokens == GRAPH.producer["blocks.1.u"].flops[0] * (stop - start)


STAGE_OF = dict(zip("FPRUB+", ("forward", "forward", "recompute", "recompute", "backward", "backward"), strict=True))


@pytest.mark.parametrize("policy", [*POLICIES, "packed"])
def test_a_stage_is_that_of_the_action_and_a_free_goes_with_the_action_before(policy: str) -> None:
    packed = frozenset({"blocks.1.u", "blocks.2.x"})
    plan = make_plan(GRAPH, "save_all" if policy == "packed" else policy)
    plan = replace(plan, packed=packed) if policy == "packed" else plan
    found = of(simulate(training_schedule(GRAPH, plan)))
    for tick, action in enumerate(found.actions):
        assert found.stages[tick] == (found.stages[tick - 1] if action[0] == "-" else STAGE_OF[action[0]])
        assert found.stages[tick] in STAGES
    assert {action[0] for action in found.actions} >= ({*"FPUB-"} if policy == "packed" else {*"FB-"})


def test_evaluation_goes_forward_alone() -> None:
    simulation = simulate(evaluation_schedule(GRAPH, make_plan(GRAPH, "save_all")))
    found = of(simulation)
    assert_agrees(found, simulation)
    assert set(found.stages) == {"forward"}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_peak_is_the_simulations_and_the_arena_the_layouts(policy: str) -> None:
    simulation = simulation_of(policy)
    layout = lay_out(simulation)
    found = timeline(simulation, layout)
    peak = found.peak
    assert (peak.tick, peak.arena_bytes) == (simulation.peak_tick, layout.size_bytes)
    assert peak.action == found.actions[peak.tick]
    assert sum(nbytes for _, nbytes, _ in peak.live) == simulation.peak_bytes
    assert [nbytes for _, nbytes, _ in peak.live] == sorted((nbytes for _, nbytes, _ in peak.live), reverse=True)
    assert found.offsets == layout.offsets
    assert found.budget_bytes == (240000 if policy.startswith("optimal") else None)


def test_json_has_columns_and_loses_nothing() -> None:
    found = of(simulation_of("optimal(240000)"))
    value = json.loads(json.dumps(found.to_json()))
    assert value["actions"] == list(found.actions)
    assert value["live_bytes"] == {category: list(column) for category, column in found.live_bytes.items()}
    starts = [*(start for start, _ in value["stages"]), len(found.actions)]
    runs = zip(value["stages"], starts[1:], strict=True)
    assert [stage for (start, stage), stop in runs for _ in range(start, stop)] == list(found.stages)
    for index, (buffer, offset) in enumerate(zip(found.buffers, found.offsets, strict=True)):
        columns = value["buffers"]
        assert [columns[key][index] for key in ("offset", "bytes", "born", "dies")] == [
            offset, buffer.nbytes, buffer.born, buffer.dies
        ]  # fmt: skip
        assert value["categories"][columns["category"][index]] == buffer.category
    for index, each in enumerate(found.held):
        assert {key: column[index] for key, column in value["held"].items()} == vars(each)
    assert value["arena_bytes"] == found.peak.arena_bytes
    assert (value["peak_tick"], value["budget_bytes"]) == (found.peak.tick, found.budget_bytes)
    live = [(each["tensor"], each["bytes"], each["category"]) for each in found.peak.to_json()["live"]]
    assert tuple(live) == found.peak.live
