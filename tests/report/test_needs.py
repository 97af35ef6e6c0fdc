"""What backward needs, and whether it was kept or brought back, and when, as the schedule says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.graph.graph import Graph
from fastbp.policy.named import make_plan
from fastbp.report.needs import Need, Needs
from fastbp.schedule.actions import Recompute, written
from fastbp.schedule.plan import Plan, Slices
from fastbp.schedule.schedule import Schedule, training_schedule

CONFIG = DecoderConfig.preset("seed")
POLICIES = ("save_all", "full", "full_last", "every(1)", "selective(gelu, layernorm)", "dots", "revolve(1)")


def scheduled(policy: str, config: DecoderConfig = CONFIG, dtype: str = "float64") -> Schedule:
    graph = decoder_graph(config, 1, workers=0, dtype=dtype)
    return training_schedule(graph, make_plan(graph, policy))


def needs_of(schedule: Schedule) -> dict[tuple[str, str], Need]:
    """By node and tensor."""
    needs = Needs(schedule)
    return {(node.name, need.tensor): need for node in schedule.graph.nodes for need in needs.of(node)}


@pytest.mark.parametrize("policy", POLICIES)
def test_needs_are_what_the_graph_s_backward_reads(policy: str) -> None:
    schedule = scheduled(policy)
    graph = schedule.graph
    for node in graph.nodes:
        found = Needs(schedule).of(node)
        assert tuple(need.tensor for need in found) == node.backward_reads
        for need in found:
            tensor = graph.tensors[need.tensor]
            assert (need.kind, need.shape, need.nbytes) == (tensor.kind, tensor.shape, graph.bytes_of(need.tensor))
            assert (need.how == "there") == (tensor.kind != "activation")


@pytest.mark.parametrize("policy", POLICIES)
def test_what_the_plan_keeps_is_kept_and_the_rest_recomputed(policy: str) -> None:
    schedule = scheduled(policy)
    found = {key: need for key, need in needs_of(schedule).items() if need.kind == "activation"}
    dropped = 0
    for (_, tensor), need in found.items():
        kept = tensor in schedule.plan.keep
        assert need.how == ("kept" if kept else "recomputed"), tensor
        assert bool(need.runs) != kept
        dropped += not kept
    assert bool(dropped) == (policy != "save_all")


def test_a_recomputation_is_named_with_its_tick() -> None:
    schedule = scheduled("full_last")
    needs = Needs(schedule)
    for (node, tensor), need in needs_of(schedule).items():
        for run in need.runs:
            action = schedule.actions[run.tick]
            assert isinstance(action, Recompute)
            assert (written(action), action.node) == (run.action, schedule.graph.producer[tensor].name)
            assert run.tick < needs.ticks[node][0]
    weights = needs_of(schedule)["blocks.0.o", "blocks.0.p"]
    assert [run.action for run in weights.runs] == ["R blocks.0.o"]


def test_in_slices_every_slice_has_its_recomputation() -> None:
    graph: Graph = decoder_graph(DecoderConfig(1, 16, 2, 32, 32, 40), 2, workers=0)
    plan = Plan("drawn", frozenset({"blocks.0.x", "final.x", "blocks.0.qkv"}), 64, (Slices(1, 16),))
    schedule = training_schedule(graph, plan)
    found, needs = needs_of(schedule), Needs(schedule)
    assert found["blocks.0.o", "blocks.0.qkv"].how == "kept"
    gelu = found["blocks.0.g", "blocks.0.u"]
    assert [run.action for run in gelu.runs] == [f"R blocks.0.u[{i}:{i + 16}]" for i in (0, 16, 32, 48)]
    assert len(needs.ticks["blocks.0.g"]) == 4
    assert len(needs.sums["blocks.0.ln2"]) == 4


def test_what_waited_as_bfloat16_is_unpacked() -> None:
    graph = decoder_graph(CONFIG, 1, workers=0)
    plan = make_plan(graph, "save_all")
    schedule = training_schedule(graph, replace(plan, packed=frozenset({"blocks.1.u"})))
    need = needs_of(schedule)["blocks.1.g", "blocks.1.u"]
    assert (need.how, [run.action for run in need.runs]) == ("unpacked", ["U blocks.1.u"])
