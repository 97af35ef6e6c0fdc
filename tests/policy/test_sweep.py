"""The frontier rises in bytes and falls in cost, from the smallest budget to the one that costs nothing."""

from __future__ import annotations

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.policy.optimal import Planner
from fastbp.policy.sweep import sweep


def test_no_point_is_worse_than_another() -> None:
    planner = Planner(decoder_graph(DecoderConfig(3, 32, 2, 96, 128, 97), 2, workers=2))
    points = sweep(planner, 15)
    peaks, costs = [each.peak_bytes for each in points], [each.cost for each in points]
    assert peaks == sorted(set(peaks))
    assert costs == sorted(costs, reverse=True)
    assert peaks[-1] == planner.largest_bytes
    assert points[0].cost > points[-1].cost
    assert len(points) > 8
