"""What is told of a tensor is what the schedule does with it."""

from __future__ import annotations

import pytest

from fastbp.base.errors import InputError
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.policy.explain import changed, explain, tensors_called
from fastbp.policy.named import make_plan
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import Simulation, simulate

GRAPH = decoder_graph(DecoderConfig(3, 16, 2, 64, 16, 2048), 2)


def simulation(policy: str) -> Simulation:
    return simulate(training_schedule(GRAPH, make_plan(GRAPH, policy)))


@pytest.mark.parametrize("policy", ["save_all", "full", "optimal(230000)"])
def test_the_runs_again_are_those_of_the_schedule(policy: str) -> None:
    found = simulation(policy)
    made = {GRAPH.producer[tensor.name].name: tensor.name for tensor in GRAPH.activations}
    assert sum(explain(found, tensor).again_flops for tensor in made.values()) == found.recomputed_flops
    for tensor in GRAPH.activations:
        each = explain(found, tensor.name)
        assert each.lives == tuple(sorted(set(each.lives)))
        assert each.kept == (tensor.name in found.schedule.plan.keep)


def test_a_kept_tensor_lives_once_and_a_dropped_one_twice() -> None:
    assert len(explain(simulation("save_all"), "blocks.1.u").lives) == 1
    found = explain(simulation("full"), "blocks.1.u")
    assert (len(found.lives), found.recomputed_runs, found.kept) == (2, 1, False)
    assert (found.forward_readers, found.backward_readers) == (("blocks.1.g",), ("blocks.1.g",))
    assert found.flops_per_byte == found.producer_flops / (32 * 64 * 4)


def test_names_of_one_block_and_of_all() -> None:
    assert tensors_called(GRAPH, "qkv") == [f"blocks.{i}.qkv" for i in range(3)]
    assert tensors_called(GRAPH, "blocks.2.qkv") == ["blocks.2.qkv"]
    with pytest.raises(InputError, match="did you mean 'qkv'"):
        tensors_called(GRAPH, "qvk")


def test_a_change_is_a_plan_of_its_own() -> None:
    full = make_plan(GRAPH, "full")
    more = changed(GRAPH, full, "qkv=keep")
    assert more.keep == full.keep | {f"blocks.{i}.qkv" for i in range(3)}
    assert changed(GRAPH, more, "qkv=recompute").keep == full.keep
    assert changed(GRAPH, full, "blocks.0.x=recompute").keep == full.keep - {"blocks.0.x"}
    for words, why in (("qkv=drop", "TENSOR=keep or"), ("qkv", "TENSOR=keep or"), ("proj=keep", "reads no such")):
        with pytest.raises(InputError, match=why):
            changed(GRAPH, full, words)
