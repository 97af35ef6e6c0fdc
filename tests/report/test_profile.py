"""A profile is one screen, one JSON object and one value for a notebook; its peak is the plan's and the arena's."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fastbp.base.units import format_bytes
from fastbp.graph.config import DecoderConfig
from fastbp.memory.layout import layout_bytes
from fastbp.policy.named import make_plan
from fastbp.report.profile import Profile, ledger, profile
from fastbp.report.profile_lines import block_lines, op_lines, profile_lines, resident_lines
from fastbp.run.decoder import Decoder
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import simulate

pytestmark = pytest.mark.usefixtures("small_triad")
TINY = DecoderConfig(3, 16, 2, 32, 8, 64)


def profiled(**options: Any) -> Profile:
    return profile(TINY, 2, seconds=0.001, **{"backend": "cython", "workers": 1} | options)


POLICIES = ("save_all", "full", "every(2)", "selective(core_attn, gelu)", "revolve(2)", "optimal(33KiB)")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("blocks", "context", "batch"), [(3, 8, 2), (4, 24, 3)])
def test_the_peak_is_the_plans_and_the_arenas(policy: str, blocks: int, context: int, batch: int) -> None:
    config = DecoderConfig(blocks, 16, 2, 32, context, 64)
    if policy.startswith("optimal") and context > 8:
        policy = "optimal(128KiB)"
    decoder = Decoder(config, batch, policy=policy, backend="cython")
    found = ledger(decoder)
    plan = make_plan(decoder.graph, policy)
    assert found["peak"]["bytes"] == layout_bytes(decoder.graph, plan) == decoder.peak_bytes_predicted
    assert found["peak"]["bytes"] == decoder.measure_peak_bytes() <= decoder.arena.size_bytes
    simulation = simulate(training_schedule(decoder.graph, plan))
    assert sum(row["bytes"] for row in found["peak"]["live"]) == simulation.peak_bytes
    inside = [nbytes for name, nbytes in found["categories"].items() if name in found["timeline"]["categories"]]
    assert sum(inside) == simulation.peak_bytes
    columns = found["timeline"]["live_bytes"].values()
    assert max(map(sum, zip(*columns, strict=True))) == simulation.peak_bytes
    assert found["timeline"]["actions"][found["peak"]["tick"]] == found["peak"]["action"]


@pytest.mark.parametrize("options", [{}, {"policy": "full"}, {"backend": "numpy"}, {"policy": "optimal(33KiB)"}])
def test_one_screen_says_where_seconds_and_bytes_go(options: dict[str, Any]) -> None:
    found = profiled(name="tiny", **options)
    json.dumps(found.to_json(), allow_nan=False)
    lines = found.lines()
    assert max(map(len, lines)) <= 80
    policy = options.get("policy", "save_all")
    assert lines[0] == f"profile     tiny: batch 2, context 8, float32, {policy}"
    text = "\n".join(lines)
    for part in ("update ", "% of the FMA peak", "limits ", "linear backward ", "embedding and head ", "all memory "):
        assert part in text
    peak = found.result["peak"]
    assert f"({peak['bytes']} bytes), at tick {peak['tick']}: {peak['action']}" in " ".join(text.split())
    assert (" recompute " in text.partition("block ")[0]) == ("policy" in options)
    assert ("budget of 33.0 KiB" in text) == policy.startswith("optimal")


def test_rich_and_a_notebook_show_the_same_screen() -> None:
    found = profiled(name="<b>&[red]")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(found)
    assert [line.rstrip() for line in console.export_text().splitlines()] == found.lines()
    html = found._repr_html_()
    assert html.startswith("<pre>")
    assert "&lt;b&gt;&amp;[red]: batch 2" in html
    assert "<b>" not in html


def test_advice_has_the_figures_of_plans() -> None:
    found = profiled()
    advice, peak = found.result["advice"], found.result["peak"]["bytes"]
    text = " ".join(" ".join(found.lines()).split())
    assert "dropped in every block, " in text
    for each in advice["drops"]:
        assert each["peak_bytes"] < peak
        assert f"{each['tensor']} would free " in text
    assert f"--memory-budget {advice['planner']['budget']} peaks at" in text
    smallest = profiled(policy=f"optimal({advice['planner']['peak_bytes']})")
    assert smallest.result["peak"]["bytes"] <= advice["planner"]["peak_bytes"]


def row(op: str, share: float, **more: Any) -> dict[str, Any]:
    return {
        "op": op, "direction": "forward", "calls": 3, "seconds": share, "share": share, "product_flops": 0,
        "moved_bytes": 9, "gflops": 0.0, "gb_per_s": 12.5, "share_of_limit": 0.4, "limit": "memory bandwidth", **more,
    }  # fmt: skip


def test_ops_that_take_next_to_nothing_share_a_line() -> None:
    rows = [row("gelu", 0.95, product_flops=5, gflops=99.5), row("a", 0.046), row("b", 0.003), row("c", 0.001)]
    lines = op_lines(rows)
    assert lines[2].split() == ["gelu", "forward", "3", "950", "95.0", "99.5", "GFLOP/s", "40.0"]
    assert lines[3].split() == ["a", "forward", "3", "46.0", "4.6", "12.5", "GB/s", "40.0"]
    assert lines[4].split() == ["2", "more", "6", "4.00", "0.4"]


def test_blocks_that_keep_as_much_share_a_line() -> None:
    def block(name: Any, kept: int, seconds: float) -> dict[str, Any]:
        times = {f"{stage}_seconds": seconds for stage in ("forward", "recompute", "backward")}
        return {"block": name, "kept_bytes": kept, "recomputed_bytes": 0, **times}

    rows = [block(0, 1024, 0.001), block(1, 1024, 0.003), block(2, 2048, 1.5), block("outside", 2048, 0)]
    names = [line.partition("  ")[0] for line in block_lines(rows)[2:]]
    assert names == ["0-1, each", "2", "outside"]
    assert block_lines(rows)[2].split()[2:] == ["2.00", "2.00", "2.00", "1.0", "KiB", "0", "B"]


def test_resident_memory_is_judged() -> None:
    rss = {
        "peak_bytes": 100 << 20, "high_water_bytes": 101 << 20, "predicted_bytes": 98 << 20,
        "unexplained_bytes": 2 << 20, "unexplained_share": 0.02,
        "parts": {"interpreter": 50 << 20, "activations": 48 << 20},
    }  # fmt: skip
    text = " ".join(resident_lines(rss))
    for part in (
        "100.0 MiB at its peak",
        "(101.0 MiB by the system's own mark)",
        "98.0 MiB foretold",
        "2.0% unexplained (2.0 MiB)",
        "activations 48.0 MiB",
    ):
        assert part in text


def test_a_profile_of_json_is_the_same_profile(tmp_path: Path) -> None:
    found = profiled()
    again = Profile(json.loads(json.dumps(found.to_json())))
    assert again.lines() == found.lines() == profile_lines(found.result)
    for save, name in ((found.save_plot, "p.png"), (found.save_page, "p.html")):
        save(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 10_000


def test_a_preset_is_asked_for_by_its_name() -> None:
    found = profile("seed", seconds=0.001, backend="numpy")
    assert found.result["title"] == "seed: batch 1, context 8, float32"
    peak = format_bytes(found.result["peak"]["bytes"])
    assert repr(found) == f"<Profile: seed: batch 1, context 8, float32, save_all, peak {peak}>"


def test_matplotlib_is_imported_for_a_picture_alone() -> None:
    code = "import sys, fastbp.report.profile; print('matplotlib' in sys.modules, 'memory_profiler' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False False\n"
