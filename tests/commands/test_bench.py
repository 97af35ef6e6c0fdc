"""`fastbp bench`, on the smallest decoder and for moments: what it prints, not how fast it is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.policy.named import make_plan
from fastbp.run.contender import PEERS
from fastbp.run.products import products_of
from fastbp.schedule.schedule import training_schedule

pytestmark = pytest.mark.usefixtures("small_triad")
RunCommand = Callable[..., Any]
TINY = ("bench", "--preset", "seed", "--seconds", "0.001", "--backend", "cython")


@pytest.fixture
def no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastbp.commands.bench.installed", lambda library: False)


def test_the_figures_in_json(fastbp: RunCommand) -> None:
    result = fastbp(*TINY, "--json").json
    assert {"fma_peak_gflops", "gemm", "ops", "update"} <= set(result)
    assert (result["preset"], result["backend"], result["workers"]) == ("seed", "cython", 1)
    assert result["fma_peak_gflops"]["1"] > 0
    assert result["memory_gb_per_second"] > 0
    graph = decoder_graph(DecoderConfig.preset("seed"), 1)
    expected = products_of(training_schedule(graph, make_plan(graph, "save_all")))
    found = Counter((row["kind"], row["m"], row["n"], row["k"]) for row in result["gemm"])
    assert found == {(each.kind, each.M, each.N, each.K): 1 for each in expected}
    assert all({"gflops", "share_of_peak", "one_worker"} <= set(row) for row in result["gemm"])
    used = {node.op_name for node in graph.nodes} | {"adamw"}
    assert {op for row in result["ops"] for op in row["op"].split("+")} == used
    update = result["update"]
    assert {"seconds", "share_of_peak", "tokens_per_second", "flops_per_update", "peers"} <= set(update)
    assert update["flops_per_update"] == graph.products_per_pass
    assert update["peers"] == {}
    assert result["not_installed"] == []


def test_the_tables_fit_a_terminal(fastbp: RunCommand) -> None:
    ran = fastbp(*TINY, "--workers", 1)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    for start in (
        "FMA peak  ",
        "memory  ",
        "forward  ",
        "dX  ",
        "dW  ",
        "linear backward",
        "adamw forward",
        "Update  ",
    ):
        assert any(line.startswith(start) for line in lines), start


def test_the_options_of_the_decoder_count(fastbp: RunCommand) -> None:
    options = ("--batch", 2, "--blocks", 1, "--dtype", "float64", "--policy", "full", "--context", 4)
    result = fastbp(*TINY, *options, "--json").json
    assert (result["batch"], result["context"], result["dtype"], result["policy"]) == (2, 4, "float64", "full")
    forward = [row for row in result["gemm"] if row["kind"] == "forward"]
    tokens = [row["n"] if row["where"] == ["losses"] else row["m"] for row in forward]
    assert set(tokens) == {8}, "the head's logits are transposed"


def test_numpy_is_measured_too(fastbp: RunCommand) -> None:
    result = fastbp(*TINY, "--backend", "numpy", "--json").json
    assert result["backend"] == "numpy"
    assert result["update"]["seconds"] > 0


def test_peers_that_are_missing_are_named(fastbp: RunCommand, no_peers: None) -> None:
    ran = fastbp(*TINY, "--peers")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[-1] == f"not installed: {', '.join(PEERS)}"
    row = next(line for line in ran.out.splitlines() if line.startswith("fastbp cython "))
    assert re.search(r" 1\.00 +\d+\.\d MiB +\d+$", row)


def test_a_peer_has_its_row_beside_ours(fastbp: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    # NumPy stands for a library: its contender is one of ours.
    monkeypatch.setattr("fastbp.commands.bench.PEERS", {"numpy": ("fastbp numpy", "fastbp nothing")})
    result = fastbp(*TINY, "--peers", "--json").json
    peers = result["update"]["peers"]
    assert list(peers) == ["fastbp cython", "fastbp numpy", "fastbp nothing"]
    assert peers["fastbp numpy"]["ratio"] > 0
    assert peers["fastbp numpy"]["rss_peak_bytes"] > 10 << 20
    assert "backend 'nothing' is unknown" in peers["fastbp nothing"]["failed"]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--seconds", "0"], ["--seconds", "more than 0"]),
        (["--seconds", "nan"], ["--seconds", "out of bounds"]),
        (["--seconds", "soon"], ["'soon' is not a number"]),
        (["--backend", "cyton"], ["did you mean 'cython'?"]),
        (["--peers", "--dtype", "float64"], ["--peers with --dtype float64"]),
        (["--peers", "--dropout", "0.1"], ["--peers with --dropout 0.1"]),
        (["--workers", "999"], ["--workers 999"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_input_is_one_line(fastbp: RunCommand, options: list[str], parts: list[str]) -> None:
    fastbp(*TINY, *options).refused(*parts)


def test_peers_need_a_checkout(fastbp: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr("fastbp.run.contender.SERVER", tmp_path / "serve.py")
    fastbp(*TINY, "--peers").refused("--peers", "checkout")


def test_an_interruption_is_one_line(fastbp: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fastbp.commands.bench.measure_ops", interrupt)
    fastbp(*TINY).refused("stopped", code=130)
