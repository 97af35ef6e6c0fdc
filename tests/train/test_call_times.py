"""Seconds by op and by block: all of an update, each call once."""

from __future__ import annotations

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.run.calls import block_of
from fastbp.run.limits import Limits
from fastbp.run.workers import Workers
from fastbp.schedule.actions import Free, Recompute
from fastbp.train.call_times import OUTSIDE, CallTimes, block_rows, measure_calls, recomputed_bytes, update_row
from fastbp.train.synthetic import synthetic_trainer
from fastbp.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("small_triad")
TINY = DecoderConfig(3, 16, 2, 32, 8, 64)


def measured(policy: str, backend: str = "cython") -> tuple[Trainer, CallTimes]:
    trainer = synthetic_trainer(TINY, 2, policy=policy, backend=backend, workers=1)
    return trainer, measure_calls(trainer, Limits(Workers(1)), 0.001)


@pytest.mark.parametrize("backend", ["cython", "numpy"])
@pytest.mark.parametrize("policy", ["save_all", "full"])
def test_ops_are_the_update(policy: str, backend: str) -> None:
    trainer, times = measured(policy, backend)
    rows = times.op_rows()
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert [row["seconds"] for row in rows] == sorted((row["seconds"] for row in rows), reverse=True)
    flops = sum(row["product_flops"] for row in rows if row["direction"] != "recompute")
    assert flops == trainer.flops_per_update
    if backend == "numpy":
        calls = sum(not isinstance(action, Free) for action in trainer.decoder.schedule.actions)
        assert sum(row["calls"] for row in rows) == calls + 1
    for row in rows:
        assert row["limit"] == ("FMA peak" if row["product_flops"] else "memory bandwidth")
        speed = row["gflops"] if row["product_flops"] else row["gb_per_s"]
        assert speed == pytest.approx((row["product_flops"] or row["moved_bytes"]) / row["seconds"] / 1e9)
        assert row["share_of_limit"] > 0


@pytest.mark.parametrize("policy", ["save_all", "full", "every(2)"])
def test_blocks_are_the_rest_of_the_update(policy: str) -> None:
    trainer, times = measured(policy)
    simulation = trainer.decoder.simulation
    rows = block_rows(times, simulation)
    assert [row["block"] for row in rows] == [0, 1, 2, OUTSIDE]
    assert sum(row["kept_bytes"] for row in rows) == simulation.kept_bytes
    recomputes = [row["block"] for row in rows if row["recompute_seconds"] > 0]
    assert recomputes == [row["block"] for row in rows if row["recomputed_bytes"] > 0]
    actions = simulation.schedule.actions
    again = {block_of(trainer.decoder.graph, action) for action in actions if isinstance(action, Recompute)}
    assert set(recomputes) == again
    assert (not again) == (policy == "save_all")
    assert all(row["forward_seconds"] > 0 and row["backward_seconds"] > 0 for row in rows)


def test_bytes_that_come_back() -> None:
    decoder = synthetic_trainer(TINY, 2, policy="full", backend="numpy").decoder
    graph = decoder.graph
    made = sum(graph.bytes_of(name) for node in graph.nodes if node.block == 0 for name in node.outputs)
    behind = sum(graph.bytes_of(name) for name in ("blocks.0.z", "blocks.1.x"))  # nobody's backward needs these
    assert recomputed_bytes(decoder.schedule)[0] == made - behind


def test_an_update_has_a_median_and_a_range() -> None:
    trainer, _ = measured("save_all")
    row = update_row(trainer, Limits(Workers(1)), 0.001)
    seconds = row["seconds"]
    assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
    assert row["share_of_peak"] > 0
