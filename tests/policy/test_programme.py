"""The programme: every line of it holds for what schedules do, so none of them is cut off."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.graph.graph import Graph
from fastbp.policy.cost import COSTS
from fastbp.policy.named import make_plan
from fastbp.policy.programme import Programme
from fastbp.policy.rotor import Rotor
from fastbp.schedule.actions import Backward, Recompute
from fastbp.schedule.effects import Effects
from fastbp.schedule.local import parted
from fastbp.schedule.plan import Plan, Slices
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import Simulation, simulate

GRAPHS = {
    "tiled": decoder_graph(DecoderConfig(3, 16, 2, 40, 12, 20), 3),
    "materialised": decoder_graph(DecoderConfig(3, 8, 2, 24, 7, 20, attention="materialised"), 2),
    "one sequence": decoder_graph(DecoderConfig(4, 8, 1, 32, 16, 20), 1),
}


def ticks(found: Simulation) -> list[int]:
    """The actions that the programme calls ticks: the head's last, then each block's first of attention."""
    graph, actions = found.schedule.graph, found.schedule.actions
    backward = [(i, action.node) for i, action in enumerate(actions) if isinstance(action, Backward)]
    blocks = [f"blocks.{block}.o" for block in reversed(range(graph.blocks))]
    last = max(i for i, node in backward if node == graph.nodes[-2].name)
    return [last, *(min(i for i, node in backward if node == name) for name in blocks)]


def values(found: Simulation, programme: Programme) -> np.ndarray:
    """What a schedule gives the programme's variables."""
    graph, effects, at = found.schedule.graph, Effects(found.schedule.graph), ticks(found)
    rows = {key: np.zeros(graph.tokens, bool) for key in programme.variables}
    for k, tick in enumerate(at):
        for buffer in found.live_at(tick):
            name, part = parted(buffer.name_at(tick))
            if ("S", name, k) in rows:
                rows["S", name, k][slice(*part) if part else slice(None)] = True
    for i, action in enumerate(found.schedule.actions):
        window = sum(i > tick for tick in at) - 1
        if isinstance(action, Recompute) and ("R", action.node, window) in rows:
            rows["R", action.node, window][slice(*(effects.token_rows(action) or (None, None)))] = True
    result = np.zeros(len(programme.variables))
    for key, column in programme.variables.items():
        result[column] = rows[key].mean()
    return result


def assert_holds(graph: Graph, plan: Plan) -> None:
    found = simulate(training_schedule(graph, plan))
    programme = Programme(graph, found.peak_bytes)
    given = values(found, programme)
    for terms, least in programme.rows:
        assert sum(value * given[column] for column, value in terms.items()) >= least - 1e-9
    for (letter, name, k), column in programme.variables.items():
        if programme.is_whole(letter, name, k):
            assert given[column] in (0, 1), (letter, name, k)
    spent = sum(
        graph.by_name[name].flops[0] * given[column]
        for (letter, name, _), column in programme.variables.items()
        if letter == "R"
    )
    assert spent <= found.recomputed_flops * (1 + 1e-9)


@pytest.mark.parametrize("name", GRAPHS)
@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(data=st.data())
def test_every_line_holds_for_any_plan(name: str, data: st.DataObject) -> None:
    graph = GRAPHS[name]
    tensors = sorted(graph.read_by_backward)
    drawn = data.draw(st.frozensets(st.sampled_from(tensors)))
    slices = st.builds(Slices, st.integers(1, 3), st.sampled_from([1, 4, 16]))
    walks = tuple(data.draw(st.one_of(st.none(), slices)) for _ in range(graph.blocks))
    assert_holds(graph, Plan("drawn", drawn, data.draw(st.sampled_from([1, 5, 999])), walks))


@pytest.mark.parametrize("name", GRAPHS)
def test_every_line_holds_where_inputs_are_brought_back_again_and_again(name: str) -> None:
    graph = GRAPHS[name]
    rotor = Rotor(graph, COSTS["flops"])
    for policy in ("full_last", "every(3)", "revolve(1)", "revolve(2)", "save_all"):
        assert_holds(graph, make_plan(graph, policy))
    for plan in {rotor.search(units) for units in range(rotor.most)} - {None}:
        assert plan is not None
        assert_holds(graph, plan)
