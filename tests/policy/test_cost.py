"""Costs are whole, and a slice of few rows pays for the weights that it moves."""

from __future__ import annotations

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.policy.cost import (
    AGAIN,
    BACKWARD,
    BALANCE,
    COSTS,
    FORWARD,
    FROM_KEPT,
    SLICED,
    TO_KEEP,
    Measured,
    when_kept,
)

GRAPH = decoder_graph(DecoderConfig(1, 64, 2, 256, 64, 100), 4)


def test_flops_are_those_that_run_again() -> None:
    node = GRAPH.by_name["blocks.0.u"]
    assert COSTS["flops"].of(GRAPH, node, AGAIN, 256) == node.flops[0]
    assert COSTS["flops"].of(GRAPH, node, FORWARD, 256) == COSTS["flops"].of(GRAPH, node, BACKWARD, 256) == 0


def test_the_roofline_is_flops_and_bytes() -> None:
    roofline = COSTS["roofline"]
    norm, linear = GRAPH.by_name["blocks.0.ln1"], GRAPH.by_name["blocks.0.u"]
    # x and y, mean and rstd, weight and bias: 4 bytes each.
    moved = 4 * (2 * 256 * 64 + 2 * 256 + 2 * 64)
    assert roofline.of(GRAPH, norm, FORWARD, 256) == norm.flops[0] + BALANCE * moved
    # x and y once, weights and bias once a slice.
    moved = 4 * (256 * (64 + 256) + 4 * (64 * 256 + 256))
    assert roofline.of(GRAPH, linear, FORWARD, 64) == linear.flops[0] + BALANCE * moved
    assert roofline.of(GRAPH, linear, BACKWARD, 16) > 1.5 * roofline.of(GRAPH, linear, BACKWARD, 256)
    assert roofline.of(GRAPH, GRAPH.by_name["blocks.0.mid"], BACKWARD, 256) == 0


def test_a_last_slice_of_fewer_rows_costs_less() -> None:
    """Or slices that leave a short rest would seem dearer than smaller ones that leave none."""
    linear, roofline = GRAPH.by_name["blocks.0.u"], COSTS["roofline"]
    weights = BALANCE * 4 * (64 * 256 + 256)
    whole = roofline.of(GRAPH, linear, FORWARD, 256)
    assert [roofline.of(GRAPH, linear, FORWARD, rows) - whole for rows in (128, 120, 100)] == [
        weights,
        2 * weights,
        2 * weights,
    ]


def test_what_was_measured_is_looked_up_by_the_name_within_a_block() -> None:
    measured = Measured({("u", FORWARD, 64): 7, ("u", BACKWARD, 64): 9})
    node = GRAPH.by_name["blocks.0.u"]
    assert [measured.of(GRAPH, node, when, 64) for when in (FORWARD, AGAIN, BACKWARD)] == [7, 7, 9]
    assert measured.of(GRAPH, GRAPH.by_name["blocks.0.mid"], BACKWARD, 64) == 0
    with pytest.raises(KeyError):
        measured.of(GRAPH, GRAPH.by_name["blocks.0.z"], FORWARD, 64)


def test_another_size_costs_what_the_next_one_does_and_again_what_forward_does_where_it_never_ran() -> None:
    measured = Measured({("u", FORWARD, 64): 7, ("u", FORWARD, 16): 5, ("u", AGAIN, 64): 8})
    node = GRAPH.by_name["blocks.0.u"]
    assert [measured.of(GRAPH, node, FORWARD, rows) for rows in (8, 17, 63, 512)] == [5, 5, 7, 7]
    assert [measured.of(GRAPH, node, AGAIN, rows) for rows in (64, 16)] == [8, 5]


def test_what_was_kept_goes_through_memory() -> None:
    linear, gelu, norm = (GRAPH.by_name[f"blocks.0.{name}"] for name in ("u", "g", "ln1"))
    assert when_kept(GRAPH, linear, FORWARD, {"blocks.0.u"}) == TO_KEEP
    assert when_kept(GRAPH, linear, FORWARD, {"blocks.0.ln2"}) == FORWARD
    assert when_kept(GRAPH, linear, BACKWARD, {"blocks.0.ln2"}) == FROM_KEPT
    assert when_kept(GRAPH, gelu, BACKWARD, {"blocks.0.g"}) == BACKWARD  # it reads u
    assert when_kept(GRAPH, norm, FORWARD, {"blocks.0.ln1.mean"}) == FORWARD  # a few numbers a row
    assert when_kept(GRAPH, norm, BACKWARD, set()) == FROM_KEPT  # the block's input
    assert when_kept(GRAPH, linear, AGAIN, {"blocks.0.u"}) == AGAIN
    head = GRAPH.nodes[-1]
    assert when_kept(GRAPH, head, BACKWARD, set(head.backward_reads)) == BACKWARD


def test_kept_or_not_a_call_that_was_measured_one_way_alone_counts_the_other_way_too() -> None:
    measured = Measured({("u", FORWARD, 64): 7, ("u", TO_KEEP, 64): 6, ("u", FROM_KEPT, 64): 9, ("z", TO_KEEP, 64): 4})
    linear, last = GRAPH.by_name["blocks.0.u"], GRAPH.by_name["blocks.0.z"]
    assert [measured.of(GRAPH, linear, when, 64) for when in (FORWARD, TO_KEEP, AGAIN, BACKWARD)] == [7, 6, 7, 9]
    assert [measured.of(GRAPH, last, when, rows) for when in (FORWARD, AGAIN) for rows in (64, 32)] == [4, 4, 4, 4]


def test_a_planner_is_charged_for_slices_and_a_prediction_is_not() -> None:
    linear, head = GRAPH.by_name["blocks.0.u"], GRAPH.nodes[-1]
    measured = Measured({(name, FORWARD, rows): 1000 for name in ("u", head.name) for rows in (64, GRAPH.tokens)})
    for cost, sliced in ((measured, round(1000 * SLICED)), (measured.as_measured, 1000)):
        assert (cost.of(GRAPH, linear, FORWARD, 64), cost.of(GRAPH, linear, FORWARD, GRAPH.tokens)) == (sliced, 1000)
        assert cost.of(GRAPH, head, FORWARD, 64) == 1000
