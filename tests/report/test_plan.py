"""A plan for people and as JSON: every figure comes from the simulation."""

from __future__ import annotations

import json

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.memory.layout import lay_out
from fastbp.policy.named import make_plan
from fastbp.report.plan import LINES_AT_PEAK, plan_json, plan_lines
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import Simulation, simulate

POLICIES = ("save_all", "full", "every(2)", "selective(gelu)", "save_only(qkv)")


def simulation(policy: str, preset: str = "small") -> Simulation:
    graph = decoder_graph(DecoderConfig.preset(preset), 2)
    return simulate(training_schedule(graph, make_plan(graph, policy)))


def lines(policy: str, preset: str = "small", schedule: bool = False) -> list[str]:
    found = simulation(policy, preset)
    return plan_lines(found, lay_out(found), lay_out(simulation("save_all", preset)), 3 << 20, schedule)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_tensors_at_the_peak_are_those_that_live_then(policy: str) -> None:
    found = simulation(policy)
    result = plan_json(found, lay_out(found), 100)
    assert json.loads(json.dumps(result)) == result
    live = result["live_at_peak"]
    assert sum(each["bytes"] for each in live) == result["peak_bytes"] == found.peak_bytes
    assert [each["bytes"] for each in live] == sorted((each["bytes"] for each in live), reverse=True)
    assert len({each["tensor"] for each in live}) == len(live)
    assert result["categories"]["optimiser state"] == 200
    assert result["schedule"][0] == "F blocks.0.x"


def test_a_buffer_is_called_by_what_it_holds_at_the_time() -> None:
    # A gradient is written over the tensor that its op read last: the buffer has two names, one after the other.
    found = simulation("save_all")
    shared = [buffer for buffer in found.buffers if len(buffer.names) > 1]
    assert shared
    tick = found.peak_tick
    takes = {
        new: at
        for at, action in enumerate(found.schedule.actions)
        for new, old in getattr(action, "takes", ())
    }  # fmt: skip
    names = {each["tensor"] for each in plan_json(found, lay_out(found), 0)["live_at_peak"]}
    for buffer in shared:
        if buffer.born <= tick < buffer.dies:
            held = [name for name in buffer.names if name not in takes or takes[name] <= tick][-1]
            assert held in names
            assert not names & (set(buffer.names) - {held})


def test_what_is_kept_and_what_is_recomputed() -> None:
    text = "\n".join(lines("every(2)"))
    assert "kept        " in text
    assert ": x[0,2,3], ln1[3], ln1.mean[3], " in text
    assert "recomputed  ln1[0-2], ln1.mean[0-2], " in text
    assert "recomputed  nothing" in "\n".join(lines("save_all"))


def test_the_comparison_is_with_save_all() -> None:
    whole = simulation("save_all")
    full = simulation("full")
    text = " ".join(" ".join(lines("full")).split())
    assert f"({full.peak_bytes} bytes), at tick {full.peak_tick}:" in text
    assert f"{full.peak_bytes / whole.peak_bytes:.1%} of save_all's" in text
    assert f"for {full.extra_flops_share:.1%} more FLOPs" in text
    assert "100.0% of save_all's" in " ".join(lines("save_all"))


def test_the_smaller_tensors_are_counted_together() -> None:
    shown = lines("save_all")
    at = next(i for i, line in enumerate(shown) if line.startswith("at the peak"))
    rest = shown[-1]
    assert len(shown) == at + 1 + LINES_AT_PEAK + 1
    live = simulation("save_all").live_at(simulation("save_all").peak_tick)
    assert f"in {len(live) - LINES_AT_PEAK} smaller or equal ones" in rest


def test_the_schedule_is_printed_where_it_is_asked_for() -> None:
    found = simulation("full", "seed")
    text = lines("full", "seed", schedule=True)
    at = text.index("schedule")
    assert len(text) - at - 1 == len(found.schedule.actions)
    assert text[at + 1].split() == ["0", "F", "blocks.0.x"]
    assert "schedule" not in lines("full", "seed")


@pytest.mark.parametrize("policy", [*POLICIES, "selective(layernorm, gelu, core_attn, mlp)"])
@pytest.mark.parametrize("preset", ["seed", "small", "medium"])
def test_every_line_fits_a_terminal(policy: str, preset: str) -> None:
    assert max(map(len, lines(policy, preset, schedule=True))) <= 80


def test_the_peak_counts_the_gaps_as_training_does() -> None:
    config = DecoderConfig(2, 30, 3, 22, 17, 48, attention="materialised")
    graph = decoder_graph(config, 8, workers=1)
    found = simulate(training_schedule(graph, make_plan(graph, "full")))
    layout = lay_out(found)
    assert layout.size_bytes > found.peak_bytes, "this shape no longer has gaps: take one that has"
    assert plan_json(found, layout, 0)["peak_bytes"] == layout.size_bytes
