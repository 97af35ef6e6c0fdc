"""`fastbp profile`, on the smallest decoder and for moments: what it prints, not how fast it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.run.decoder import Decoder

pytestmark = pytest.mark.usefixtures("small_triad")
RunCommand = Callable[..., Any]
TINY = ("profile", "--preset", "seed", "--seconds", "0.001", "--backend", "cython")
KEYS = {
    "title", "policy", "budget_bytes", "extra_flops_share", "kept_bytes", "backend", "workers", "update", "limits",
    "ops", "blocks", "categories", "peak", "timeline", "advice", "rss",
}  # fmt: skip


def test_the_figures_in_json(fastbp: RunCommand) -> None:
    result = fastbp(*TINY, "--policy", "full", "--json").json
    assert set(result) == KEYS
    assert (result["title"], result["policy"]) == ("seed: batch 1, context 8, float32", "full")
    assert {"median", "min", "max"} == set(result["update"]["seconds"])
    assert {"share_of_peak", "flops_per_update", "calls_seconds"} <= set(result["update"])
    assert set(result["ops"][0]) == {
        "op", "direction", "calls", "seconds", "share", "product_flops", "moved_bytes", "gflops", "gb_per_s",
        "share_of_limit", "limit",
    }  # fmt: skip
    assert {row["direction"] for row in result["ops"]} == {"forward", "recompute", "backward"}
    assert {row["limit"] for row in result["ops"]} == {"FMA peak", "memory bandwidth"}
    assert set(result["blocks"][0]) == {
        "block", "forward_seconds", "recompute_seconds", "backward_seconds", "kept_bytes", "recomputed_bytes",
    }  # fmt: skip
    assert set(result["peak"]) == {"bytes", "tick", "action", "live"}
    assert set(result["peak"]["live"][0]) == {"tensor", "bytes", "category"}
    assert result["rss"] is None


@pytest.mark.parametrize("policy", ["save_all", "full", "optimal(31KiB)"])
@pytest.mark.parametrize("shape", [(), ("--batch", 3, "--context", 12, "--blocks", 3)])
def test_the_peak_is_what_plan_and_decoder_say(fastbp: RunCommand, policy: str, shape: tuple[object, ...]) -> None:
    if shape and policy.startswith("optimal"):
        policy = "optimal(160KiB)"
    options = (*shape, "--policy", policy, "--cost", "flops")
    found = fastbp(*TINY, *options, "--json").json
    plan = fastbp("plan", "--preset", "seed", "--backend", "cython", *options, "--json").json
    assert found["peak"]["bytes"] == found["timeline"]["arena_bytes"] == plan["peak_bytes"]
    assert found["peak"]["tick"] == plan["peak_tick"]
    assert [{"tensor": row["tensor"], "bytes": row["bytes"]} for row in found["peak"]["live"]] == plan["live_at_peak"]
    assert found["categories"] == plan["categories"]
    assert found["budget_bytes"] == plan["budget_bytes"]
    if not shape and policy != "optimal(31KiB)":
        decoder = Decoder(DecoderConfig.preset("seed"), 1, policy=policy, backend="cython")
        assert decoder.measure_peak_bytes() == found["peak"]["bytes"]


@pytest.mark.parametrize("backend", ["cython", "numpy", "numba"])
def test_the_screen_fits_a_terminal(fastbp: RunCommand, backend: str) -> None:
    ran = fastbp(*TINY, "--policy", "full", "--backend", backend)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(f"ran on      {backend}, 1 worker") for line in lines)
    assert re.search(r"^\S+ recompute +\d", ran.out, re.MULTILINE)


def test_a_budget_is_told(fastbp: RunCommand) -> None:
    ran = fastbp(*TINY, "--memory-budget", "31KiB", "--cost", "flops")
    assert "under a budget of 31.0 KiB" in " ".join(ran.out.split())
    assert fastbp(*TINY, "--memory-budget", "31KiB", "--cost", "flops", "--json").json["budget_bytes"] == 31 << 10


def test_a_picture_and_a_page(fastbp: RunCommand, tmp_path: Path) -> None:
    picture, page = tmp_path / "memory.png", tmp_path / "p.html"
    ran = fastbp(*TINY, "--plot", picture, "--html", page)
    assert ran.code == 0
    assert ran.out.splitlines()[-2:] == [f"picture:    {picture}", f"page:       {page}"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "seed: batch 1, context 8, float32" in page.read_text()


def test_resident_memory_is_judged_by_the_ledger(fastbp: RunCommand) -> None:
    ran = fastbp(*TINY, "--rss")
    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= 80
    text = " ".join(ran.out.split())
    said = r"resident \S+ MiB at its peak as memory-profiler saw it \(\S+ MiB by the system's own mark\)"
    assert re.search(said + r", \S+ MiB foretold: \S+% unexplained", text)
    assert "interpreter, libraries, kernels " in text


@pytest.mark.parametrize(
    ("options", "parts", "code"),
    [
        (["--plot", "memory.pdf"], ["--plot memory.pdf", "PNG"], 2),
        (["--html", "no/such/folder/p.html"], ["--html no/such/folder/p.html", "no folder"], 2),
        (["--html", "p.txt"], ["--html p.txt", "HTML"], 2),
        (["--seconds", "0"], ["--seconds", "more than 0"], 2),
        (["--policy", "fulll"], ["policy 'fulll' is unknown", "did you mean 'full'"], 2),
        (["--memory-budget", "1KiB", "--cost", "flops"], ["no plan fits into 1.0 KiB"], 3),
        (["--workers", "999"], ["--workers 999"], 2),
        (["--lossy"], ["--lossy and --policy save_all"], 2),
        (["more"], ["unknown argument more"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_bad_input_is_one_line(fastbp: RunCommand, options: list[str], parts: list[str], code: int) -> None:
    fastbp(*TINY, *options).refused(*parts, code=code)
