"""Reversal: which inputs forward keeps, golden orders, and that simulate takes any tree over all blocks, no other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.graph.graph import Graph
from fastbp.schedule.actions import Action, Backward, Recompute
from fastbp.schedule.plan import Plan, Slices
from fastbp.schedule.reversal import Reversal, Split, first_block, from_forward
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import IllegalSchedule, simulate

NESTED = Split(Split(0, 1), Split(Split(2, Split(3, 4)), 5))


def graph(blocks: int) -> Graph:
    return decoder_graph(DecoderConfig(blocks, 8, 2, 16, 6, 16), 2)


def plan(found: Graph, reversal: Reversal, *, keep: frozenset[str] = frozenset(), sliced: bool = False) -> Plan:
    outside = {name for name in found.read_by_backward if name.startswith("final")}
    kept = {f"blocks.{block}.x" for block in from_forward(reversal)}
    slices = (Slices(1, 3),) * found.blocks if sliced else ()
    return Plan("drawn", keep | outside | kept, 12, slices, reversal=reversal)


def order(found: Graph, asked: Plan) -> str:
    """ ">2" for a run of block 2 to the next input, "2" for its backward."""

    def word(action: Action) -> str | None:
        if isinstance(action, Backward) and action.node.endswith(".z") and not (action.rows and action.rows[0]):
            return action.node.split(".")[1]
        if isinstance(action, Recompute) and action.node.endswith(".z") and not (action.rows and action.rows[0]):
            return f">{action.node.split('.')[1]}"
        return None

    return " ".join(filter(None, map(word, training_schedule(found, asked).actions)))


def test_the_first_block_and_what_forward_keeps() -> None:
    assert first_block(NESTED) == 0
    assert list(from_forward(NESTED)) == [0, 2, 5]
    assert list(from_forward(3)) == [3]


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize(
    ("reversal", "golden"),
    [
        (0, "0"),
        (Split(0, 1), "1 0"),
        (Split(Split(0, 1), 2), "2 >0 1 0"),
        (Split(Split(Split(0, 1), 2), 3), "3 >0 >1 2 >0 1 0"),
        (Split(Split(0, 1), Split(2, 3)), "3 2 >0 1 0"),
        (Split(Split(0, Split(1, 2)), 3), "3 >0 >1 2 1 0"),
        (NESTED, "5 >2 >3 4 3 2 >0 1 0"),
    ],
)
def test_golden_orders(reversal: Reversal, golden: str, sliced: bool) -> None:
    found = graph(1 + max(map(int, filter(str.isdigit, golden))))
    asked = plan(found, reversal, sliced=sliced)
    assert order(found, asked) == golden
    simulate(training_schedule(found, asked))


def test_a_whole_block_is_not_run_again_to_be_walked() -> None:
    found = graph(3)
    runs = []
    for whole in (False, True):
        actions = training_schedule(found, plan(found, Split(Split(0, 1, whole), 2))).actions
        runs.append([action.node for action in actions if isinstance(action, Recompute)].count("blocks.0.qkv"))
    assert runs == [2, 1]


def trees(start: int, stop: int) -> st.SearchStrategy[Reversal]:
    """Any reversal of the blocks."""

    def cut_at(cut: int) -> st.SearchStrategy[Reversal]:
        whole = st.booleans() if cut == start + 1 else st.just(False)
        return st.builds(Split, trees(start, cut), trees(cut, stop), whole)

    return st.integers(start + 1, stop - 1).flatmap(cut_at) if stop - start > 1 else st.just(start)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(trees(0, 5), st.data())
def test_simulate_takes_any_tree(reversal: Reversal, data: st.DataObject) -> None:
    found = graph(5)
    keep = data.draw(st.frozensets(st.sampled_from(sorted(found.read_by_backward)), max_size=8))
    asked = plan(found, reversal, keep=keep, sliced=data.draw(st.booleans()))
    simulate(training_schedule(found, asked))


@pytest.mark.parametrize("reversal", [1, Split(0, 0), Split(1, 0), Split(0, Split(1, 1))])
def test_a_tree_that_leaves_a_block_out_or_has_one_twice_is_refused(reversal: Reversal) -> None:
    found = graph(2)
    with pytest.raises(IllegalSchedule):
        simulate(training_schedule(found, plan(found, reversal)))
