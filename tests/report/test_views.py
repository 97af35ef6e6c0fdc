"""From Python as on the command line: the same answers, as values that print themselves."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fastbp as api
from fastbp.base.errors import DoesNotFit, InputError
from fastbp.base.shown import WIDTH, Shown
from fastbp.check import comparison
from fastbp.check.comparison import passed
from fastbp.policy.cost import Flops
from fastbp.train.metrics import read_metrics

RunCommand = Callable[..., Any]
SEED = api.DecoderConfig.preset("seed")
TEXT = "".join(f"{i} times {j} is {i * j}.\n" for i in range(12) for j in range(12))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "TURN_SECONDS", 0.0)


def text(value: Shown) -> str:
    """What a value shows, the same everywhere and within 80 columns."""
    printed = io.StringIO()
    Console(file=printed, width=WIDTH, color_system=None).print(value)
    lines = printed.getvalue().splitlines()
    assert lines == value.lines() == str(value).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert "_repr_pretty_" in vars(type(value)), "IPython would print its repr"
    html = value._repr_html_()
    assert re.findall("<[^>]*>", html) == ["<pre>", "</pre>"]
    assert unescape(html)[5:-6] == str(value)
    return printed.getvalue()


def test_a_plan(fastbp: RunCommand) -> None:
    view = api.plan("seed", batch=2, policy="every(2)")
    assert text(view) == fastbp("plan", "--preset", "seed", "--batch", 2, "--policy", "every(2)").out
    result = fastbp("plan", "--preset", "seed", "--batch", 2, "--policy", "every(2)", "--json").json
    assert view.to_json() == {key: result[key] for key in view.to_json()}
    assert (view.peak_bytes, view.kept_bytes) == (result["peak_bytes"], result["kept_bytes"])
    assert view.extra_flops_share == result["extra_flops_share"]
    assert repr(view) == "<PlanView: every(2), peak 34.9 KiB>"


def test_a_plan_in_a_budget() -> None:
    view = api.plan(SEED, 4, memory_budget="48KiB", dtype="float64")
    assert view.plan.policy == "optimal(48KiB)"
    assert view.peak_bytes <= 48 << 10 == view.plan.budget_bytes
    assert api.plan(SEED, 4, memory_budget=48 << 10, dtype="float64").plan == view.plan
    assert api.plan(SEED, 4, memory_budget="48KiB", cost=Flops(), dtype="float64").peak_bytes <= 48 << 10
    with pytest.raises(InputError, match="memory_budget and policy 'full': give one of them"):
        api.plan(SEED, memory_budget="48KiB", policy="full")
    with pytest.raises(DoesNotFit, match="no plan fits into"):
        api.plan(SEED, memory_budget="1KiB")
    with pytest.raises(InputError, match="preset 'sead' is unknown"):
        api.plan("sead")


def test_the_batch_is_the_presets() -> None:
    assert api.plan("small").graph.tokens == 12 * 64
    assert api.plan(SEED).graph.tokens == 8


def test_a_frontier(fastbp: RunCommand) -> None:
    found = api.frontier("seed", batch=4)
    options = ("--preset", "seed", "--batch", 4, "--cost", "roofline")
    assert text(found) == fastbp("plan", *options, "--frontier").out
    assert found.to_json() == fastbp("plan", *options, "--frontier", "--json").json
    assert [point.peak_bytes for point in found] == [row["peak_bytes"] for row in found.to_json()["frontier"]]
    assert repr(found) == f"<Frontier: {len(found)} plans>"


def test_a_comparison() -> None:
    found = api.compare("seed", batch=2, policies=["full", "optimal(24KiB)"], rounds=1, workers=1)
    shown = text(found)
    assert shown.startswith("seed: batch 2, context 8, float32,")
    assert [row["policy"] for row in found if row["policy"] in shown] == [row["policy"] for row in found.rows]
    assert len(found) == 3
    assert all(map(passed, found))
    assert repr(found).startswith("<Compared: ")


def test_a_configuration() -> None:
    shown = text(api.DecoderConfig.preset("gpt2"))
    for part in ("12 blocks of width 768", "12 heads of 64", "124.4 M", "1024 tokens", "50257", "tiled"):
        assert part in shown
    assert "without biases" not in shown
    assert "attention without biases" in text(SEED)


def test_a_bare_plan() -> None:
    graph = api.decoder_graph(api.DecoderConfig.preset("small"), 2)
    assert text(api.make_plan(graph, "full")).splitlines()[:2] == ["plan        full", "blocks 0-2  keeps x"]
    sliced = text(api.plan("small", memory_budget="3MiB").plan)
    assert re.search(r"blocks? [0-9-]+ +keeps .*walked 1 sequences, \d+ rows at a\s+time", sliced)
    lossy = text(api.plan("small", memory_budget="10MiB", lossy=True).plan)
    assert "keeps as bfloat16 mid" in lossy


def test_every_plan_fits_the_columns() -> None:
    for policy in ("save_all", "full", "every(3)", "selective(gelu, layernorm)", "revolve(2)", "greedy(200MiB)"):
        view = api.plan("medium", policy=policy)
        for value in (view, view.plan, view.simulation, view.layout):
            text(value)


def test_a_simulation_and_a_layout() -> None:
    view = api.plan("small", policy="full")
    simulation = api.simulate(api.training_schedule(view.graph, view.plan))
    shown = text(simulation)
    assert f"{simulation.peak_bytes} bytes" in shown
    assert f"{simulation.extra_flops_share:.1%} more FLOPs" in shown
    assert f"{view.peak_bytes} bytes" in text(view.layout)


def test_a_decoder() -> None:
    decoder = api.Decoder(SEED, 2, policy="full", workers=1)
    shown = text(decoder)
    for part in ("2 blocks of width 16", "2 sequences", str(decoder.peak_bytes_predicted), decoder.backend.name):
        assert part in shown
    assert repr(decoder) == "<Decoder: 2 blocks of width 16, full>"


def test_a_trainer_of_a_text(tmp_path: Path) -> None:
    trainer = api.Trainer.of_text(TEXT, "seed", updates=20, learning_rate=1e-2, batch=4, policy="full")
    before = trainer.evaluate()
    for _ in range(20):
        trainer.update()
    assert trainer.evaluate() < before
    assert "20 updates of 32 tokens: 640 tokens" in text(trainer)
    assert repr(trainer) == "<Trainer: 20 updates done of <Decoder: 2 blocks of width 16, full>>"
    with pytest.raises(InputError, match="8"):
        api.Trainer.of_text("abc", "seed")


def test_a_trainer_of_a_text_trains_as_the_command_does(fastbp: RunCommand, tmp_path: Path) -> None:
    path = tmp_path / "times.txt"
    path.write_text(TEXT)
    options = ("--preset", "seed", "--steps", 5, "--log-every", 1, "--out", tmp_path / "run", "--json", path)
    assert fastbp("train", *options).json
    trainer = api.Trainer.of_text(TEXT, "seed", updates=5)
    losses = [trainer.update().loss for _ in range(5)]
    assert [line["loss"] for line in read_metrics(tmp_path / "run") if "loss" in line] == losses


def test_policies() -> None:
    shown = text(api.policies)
    assert "every(k) " in shown
    assert all(f"\n{name}" in "\n" + shown for name in api.policies)
    assert api.policies["full"].help in shown
