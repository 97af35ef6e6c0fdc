"""`fastbp plan`: exact figures without running anything, for every policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastbp.commands.plan import _foretold
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.policy.cost import BACKWARD, FORWARD, SLICED, Measured
from fastbp.policy.optimal import Planner
from fastbp.run.decoder import Decoder

RunCommand = Callable[..., Any]
KEYS = {
    "policy", "budget_bytes", "peak_bytes", "peak_tick", "live_at_peak", "kept_bytes", "extra_flops_share",
    "categories", "schedule", "plan", "certificate",
}  # fmt: skip
POLICIES = (
    "save_all", "full", "every(2)", "sqrt", "selective(layernorm, gelu, core_attn, mlp)",
    "save_only(ln1.mean, ln1.rstd, ln2.mean, ln2.rstd, qkv, mid, o, lse, ln1, ln2, u, g, x, blocks.3.qkv)",
)  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_the_plan_in_json(fastbp: RunCommand, policy: str, backend: str) -> None:
    options = ("--policy", policy, "--backend", backend, "--batch", 3, "--workers", 1, "--context", 16)
    result = fastbp("plan", *options, "--json").json
    assert set(result) == KEYS
    assert (result["policy"], result["budget_bytes"]) == (policy, None)
    assert sum(buffer["bytes"] for buffer in result["live_at_peak"]) == result["peak_bytes"]
    assert 0 <= result["peak_tick"] < len(result["schedule"])
    assert (result["extra_flops_share"] == 0) == (policy.startswith("save_"))  # that save_only drops nothing
    categories = result["categories"]
    outside = {"parameters", "parameter gradients", "optimiser state"}
    assert sum(size for name, size in categories.items() if name not in outside) == result["peak_bytes"]
    config = DecoderConfig.preset("small", context=16)
    decoder = Decoder(config, 3, policy=policy, backend=backend, workers=1)
    assert decoder.peak_bytes_predicted == result["peak_bytes"]
    assert categories["parameters"] == decoder.parameters.flat.nbytes
    assert categories["optimiser state"] == 2 * categories["parameters"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("preset", ["seed", "small", "gpt2"])
def test_the_plan_for_people_fits_a_terminal(fastbp: RunCommand, policy: str, preset: str) -> None:
    if preset == "seed" and "blocks.3" in policy:
        policy = policy.replace("blocks.3", "blocks.1").replace("lse", "p")
    ran = fastbp("plan", "--policy", policy, "--preset", preset, "--schedule")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert policy in " ".join(ran.out.split())
    for name in ("peak ", "arena ", "kept ", "recomputed ", "at the peak", "schedule"):
        assert any(line.startswith(name) for line in lines), name


def test_the_largest_tensors_at_the_peak(fastbp: RunCommand) -> None:
    ran = fastbp("plan", "--preset", "small")
    result = fastbp("plan", "--preset", "small", "--json").json
    assert f"({result['peak_bytes']} bytes)" in ran.out
    assert f"tick {result['peak_tick']}: {result['schedule'][result['peak_tick']]}" in ran.out
    shown = [line.split()[-1] for line in ran.out.splitlines() if line.startswith("     ") and "blocks." in line]
    assert shown == [buffer["tensor"] for buffer in result["live_at_peak"][: len(shown)]]


def test_a_budget_is_kept_and_told(fastbp: RunCommand) -> None:
    ran = fastbp("plan", "--memory-budget", "8MiB", "--cost", "roofline")
    result = fastbp("plan", "--memory-budget", "8 MiB", "--cost", "roofline", "--json").json
    assert result["peak_bytes"] <= result["budget_bytes"] == 8 << 20
    assert result["policy"] == "optimal(8MiB)"
    assert max(map(len, ran.out.splitlines())) <= 80
    for part in ("slices ", "budget      the smallest with a plan is", "costs ", "next MiB    saves "):
        assert part in ran.out
    smallest = int(ran.out.split("bytes);")[0].split("(")[-1])
    fastbp("plan", "--memory-budget", smallest, "--cost", "roofline")
    refused = fastbp("plan", "--memory-budget", smallest - 1, "--cost", "roofline")
    refused.refused(f"the smallest needs {smallest} bytes", code=3)


def test_a_lossy_plan_is_told_saved_and_replayed(fastbp: RunCommand, tmp_path: Path) -> None:
    options = ("--memory-budget", "7MiB", "--cost", "flops", "--lossy")
    saved = fastbp("plan", *options, "--save", tmp_path / "plan.json", "--json").json
    assert set(saved["plan"]["packed"]) < set(saved["plan"]["keep"])
    assert any(buffer["tensor"].startswith("bf16:blocks.") for buffer in saved["live_at_peak"])
    assert {word[0] for word in saved["schedule"]} >= {"P", "U"}
    assert fastbp("plan", "--policy", f"saved({tmp_path}/plan.json)", "--json").json == saved
    exact = fastbp("plan", *options[:-1], "--json").json
    assert exact["plan"]["packed"] == []
    assert exact["extra_flops_share"] > saved["extra_flops_share"]
    ran = fastbp("plan", *options)
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "as bfloat16 " in ran.out
    shares = [
        fastbp("plan", "--frontier", "--cost", "flops", *lossy, "--json").json["frontier"][0]["peak_bytes"]
        for lossy in ([], ["--lossy"])
    ]
    assert shares[1] <= shares[0]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ((), "--lossy and --policy save_all: only --memory-budget SIZE"),
        (("--policy", "greedy(8MiB)", "--cost", "flops"), "--lossy and --policy greedy"),
        (("--memory-budget", "8MiB", "--cost", "flops", "--dtype", "float64"), "take --dtype float32, or no --lossy"),
    ],
)
def test_lossy_where_it_cannot_be(fastbp: RunCommand, options: tuple[str, ...], part: str) -> None:
    fastbp("plan", "--lossy", *options).refused(part)


def test_seconds_are_measured_where_nothing_else_is_asked_for(fastbp: RunCommand) -> None:
    ran = fastbp("plan", "--memory-budget", "20KiB", "--preset", "seed")
    assert " ms, " in next(line for line in ran.out.splitlines() if line.startswith("costs "))


def test_a_plan_is_certified(fastbp: RunCommand) -> None:
    options = ("--memory-budget", "8MiB", "--cost", "flops", "--certify")
    found = fastbp("plan", *options, "--json").json["certificate"]
    assert 0 <= found["bound_flops_share"] <= found["extra_flops_share"]
    assert found["gap"] == found["extra_flops_share"] - found["bound_flops_share"] < 0.02
    text = " ".join(fastbp("plan", *options).out.split())
    assert "proof no plan in as many bytes recomputes less than " in text
    fastbp("plan", *options, "--lossy").refused("--certify with --lossy")


def test_a_saved_plan_is_replayed(fastbp: RunCommand, tmp_path: Path) -> None:
    options = ("--memory-budget", "8MiB", "--cost", "flops")
    saved = fastbp("plan", *options, "--save", tmp_path / "plan.json", "--json").json
    assert fastbp("plan", "--policy", f"saved({tmp_path}/plan.json)", "--json").json == saved
    fastbp("plan", "--save", tmp_path / "none" / "plan.json").refused("--save", "No such file")


def test_a_tensor_is_explained(fastbp: RunCommand) -> None:
    result = fastbp("plan", "--policy", "full", "--explain", "qkv", "--json").json["tensors"]
    assert [each["tensor"] for each in result] == [f"blocks.{i}.qkv" for i in range(4)]
    assert [each["kept"] for each in result] == [False, False, False, True]  # the last block is whole
    text = fastbp("plan", "--policy", "full", "--explain", "blocks.2.qkv").out
    assert max(map(len, text.splitlines())) <= 80
    for part in ("made by     blocks.2.qkv", "backward    read by blocks.2.o", "brought back"):
        assert part in text
    fastbp("plan", "--explain", "qvk").refused("did you mean 'qkv'")


def test_what_if(fastbp: RunCommand) -> None:
    result = fastbp("plan", "--policy", "full", "--what-if", "u=keep", "--json").json
    assert result["after"]["kept_bytes"] > result["before"]["kept_bytes"]
    assert result["after"]["extra_flops_share"] < result["before"]["extra_flops_share"]
    assert "points of extra FLOPs" in fastbp("plan", "--policy", "full", "--what-if", "u=keep").out
    fastbp("plan", "--what-if", "u=maybe").refused("TENSOR=keep or TENSOR=recompute")


def test_the_frontier(fastbp: RunCommand) -> None:
    points = fastbp("plan", "--frontier", "--cost", "flops", "--json").json["frontier"]
    assert [each["peak_bytes"] for each in points] == sorted({each["peak_bytes"] for each in points})
    shares = [each["extra_flops_share"] for each in points]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == 0
    text = fastbp("plan", "--frontier", "--cost", "flops").out
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) == len(points) + 2


def test_a_budget_and_a_policy_are_one_too_many(fastbp: RunCommand) -> None:
    fastbp("plan", "--memory-budget", "8MiB", "--policy", "full").refused("--policy full", "give one of them")
    fastbp("plan", "--memory-budget", "8 elephants").refused("--memory-budget", "unknown unit")


def test_a_plan_beyond_any_machine_is_refused(fastbp: RunCommand) -> None:
    fastbp("plan", "--context", 10**6, "--width", 10**9).refused("PiB of activations: take a smaller --batch", code=3)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--policy", "selectiv(gelu)"], ["(did you mean 'selective'?)", "save_all", "save_only(names)"]),
        (["--policy", "save_only(qvk)"], ["save_only(qvk)", "(did you mean 'qkv'?)"]),
        (["--policy", "full(2)"], ["full takes no argument"]),
        (["--dtype", "half"], ["--dtype", "float32, float64"]),
        (["--backend", "cuda"], ["backend 'cuda' is unknown", "numpy"]),
        (["--width", "12", "--heads", "5"], ["width 12 is not divisible by 5 heads"]),
        (["--workers", "100000"], ["--workers 100000"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_options_that_are_refused(fastbp: RunCommand, options: list[str], parts: list[str]) -> None:
    fastbp("plan", *options).refused(*parts)


def test_what_a_plan_costs_is_told_without_what_the_planner_is_charged() -> None:
    config = DecoderConfig.preset("small")
    cost = Measured({(node.name.split(".", 2)[-1], when, 64): 1000 for node in decoder_graph(config, 12).nodes
                     for when in (FORWARD, BACKWARD)} | {("blocks.0.x", FORWARD, 64): 1000})  # fmt: skip
    planner = Planner(decoder_graph(config, 12), cost)
    found = planner.search(planner.smallest_bytes)
    assert found is not None
    charged, foretold = (_foretold(planner.graph, found, each).cost for each in (cost, cost.as_measured))
    assert charged == pytest.approx(found.cost, rel=0.01)
    assert charged / SLICED * 0.99 < foretold < charged
