"""Forty budgets from the smallest to what keeping everything needs: the peak keeps to them as an integer, cost never
rises, and the gradients are the bits of save_all.
"""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.memory.layout import lay_out, layout_bytes
from fastbp.policy.cost import COSTS, schedule_cost
from fastbp.policy.named import make_plan
from fastbp.policy.optimal import Planner
from fastbp.run.decoder import Decoder
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import simulate
from tests.test_keystone import Bits, bits, filled

BATCH = {"small": 12, "medium": 8, "gpt2": 1}
COUNT = 40


@cache
def planner(config: DecoderConfig, batch: int, cost: str, workers: int = 2) -> Planner:
    return Planner(decoder_graph(config, batch, workers=workers), COSTS[cost])


def budgets(found: Planner, count: int = COUNT) -> list[int]:
    low, high = found.smallest_bytes, layout_bytes(found.graph, make_plan(found.graph, "save_all"))
    return [low + (high - low) * i // (count - 1) for i in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("preset", BATCH)
def test_the_layout_keeps_to_every_budget(preset: str, cost: str) -> None:
    found, last = planner(DecoderConfig.preset(preset), BATCH[preset], cost), None
    for budget in budgets(found):
        simulation = simulate(training_schedule(found.graph, found.plan(budget)))
        spent = schedule_cost(simulation.schedule, COSTS[cost])
        assert lay_out(simulation).size_bytes <= budget
        assert last is None or spent <= last
        last = spent
    if cost == "flops":
        assert simulation.recomputed_flops == 0


def reference(config: DecoderConfig, batch: int) -> Bits:
    return bits(filled(Decoder(config, batch, workers=1)))


def assert_budgets(config: DecoderConfig, batch: int, count: int) -> None:
    """Planned, measured and laid out are one integer, within the budget; bits are those of keeping everything."""
    expected = reference(config, batch)
    for budget in budgets(planner(config, batch, "roofline"), count):
        decoder = filled(Decoder(config, batch, policy=f"optimal({budget})", workers=2))
        assert bits(decoder) == expected
        assert decoder.measure_peak_bytes() == decoder.peak_bytes_predicted == decoder.layout.size_bytes <= budget


@pytest.mark.slow
def test_small_runs_under_every_budget() -> None:
    assert_budgets(DecoderConfig.preset("small"), BATCH["small"], COUNT)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["medium"])
def test_larger_presets_run_under_some(preset: str) -> None:
    assert_budgets(DecoderConfig.preset(preset), BATCH[preset], 5)


@settings(max_examples=12, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(2, 140), st.integers(1, 3), st.integers(2, 60),
    st.sampled_from([0.0, 0.2]), st.sampled_from(["tiled", "materialised"]),
)  # fmt: skip
def test_odd_shapes(
    blocks: int, batch: int, context: int, heads: int, vocab: int, dropout: float, attention: str
) -> None:
    config = DecoderConfig(blocks, 20 * heads, heads, 50, context, vocab, dropout=dropout, attention=attention)
    assert_budgets(config, batch, COUNT)
