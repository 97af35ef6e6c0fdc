"""A walk as a value: the same numbers under every plan, of the seed's decoder or of a snapshot's."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import fastbp
from fastbp.base.errors import InputError, NonFinite
from fastbp.data.tokenizer import CharTokenizer
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import parameter_shapes
from fastbp.report.walk import LONGEST, walk, walk_through
from fastbp.run.decoder import Decoder
from fastbp.schedule.plan import Plan, Slices
from fastbp.train.snapshot import Snapshot

NUMBERS = ("norm", "rows", "weights", "scores", "incoming", "outgoing", "added")
"""What of a stop is no matter of the plan."""


def snapshot(**changes: Any) -> Snapshot:
    """A decoder of two blocks whose weights were drawn, for the letters a to t."""
    config = DecoderConfig(2, 12, 3, 24, 16, 20, **changes)
    random = np.random.default_rng(4)
    parameters = {
        name: (0.3 * random.standard_normal(shape) + name.endswith("ln.weight")).astype(np.float32)
        for name, shape in parameter_shapes(config).items()
    }
    return Snapshot(config, CharTokenizer("abcdefghijklmnopqrst"), 7, {}, {}, parameters)


def numbers(stop: dict[str, Any]) -> list[Any]:
    return [stop[name] for name in NUMBERS]


@pytest.mark.parametrize("policy", ["full", "full_last", "optimal(31KiB)", "selective(mlp)", "revolve(1)"])
def test_numbers_are_the_same_bits_under_every_policy(policy: str) -> None:
    whole, other = (walk(policy=each).to_json() for each in ("save_all", policy))
    assert whole["stops"] != other["stops"]
    assert [numbers(stop) for stop in whole["stops"]] == [numbers(stop) for stop in other["stops"]]
    assert (whole["loss"], whole["table"]) == (other["loss"], other["table"])
    assert other["peak_bytes"] < whole["peak_bytes"]
    needs = [need for stop in other["stops"] for need in stop["needs"] if need["kind"] == "activation"]
    assert {need["how"] for need in needs} == {"kept", "recomputed"}
    assert all(bool(need["runs"]) == (need["how"] == "recomputed") for need in needs)


def test_numbers_are_the_same_bits_in_slices() -> None:
    config = DecoderConfig(2, 16, 2, 32, 32, 20, attention="materialised")
    found = []
    for plan in (None, Plan("drawn", frozenset({"final.x"}), 8, (Slices(1, 8), None))):
        decoder = Decoder(config, 1, plan=plan, workers=1)
        decoder.initialise(1)
        decoder.tokens[:], decoder.targets[:] = np.arange(32) % 20, np.arange(1, 33) % 20
        found.append(walk_through(decoder, "drawn", ("a",) * 32, ("b",) * 32).to_json())
    assert [numbers(stop) for stop in found[0]["stops"]] == [numbers(stop) for stop in found[1]["stops"]]
    assert len(found[1]["stops"][0]["ticks"]) == 4


def test_any_window_of_the_alphabet_is_walked() -> None:
    found = walk("to be, or not to be", seed=3)
    assert "".join(found.tokens) == "to be, or not to b"
    assert found.targets == (*found.tokens[1:], "e")
    assert all(len(stop.shown.rows) == 18 for stop in found.stops)
    assert found.loss != walk("to be, or not to be").loss


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "length in tokens is 0: give at least 2"),
        ("a", "length in tokens is 1: give at least 2"),
        ("a" * (LONGEST + 2), f"length in tokens is {LONGEST + 2}"),
        ("Alice", "'A' at 0 is not among the 64"),
    ],
)
def test_windows_that_are_refused(text: str, part: str) -> None:
    with pytest.raises(InputError, match=part):
        walk(text)


def test_a_block_and_a_head_that_are_not_there() -> None:
    found = walk("ab")
    with pytest.raises(InputError, match="--block 2: the decoder has 2, give one from 0 to 1"):
        found.to_json(block=2)
    with pytest.raises(InputError, match="--head 2"):
        found.to_json(head=2)


@pytest.mark.parametrize("changes", [{}, {"positions": "sinusoidal", "attention_bias": False}, {"dropout": 0.3}])
def test_a_snapshot_s_decoder_takes_its_own_tokens(changes: dict[str, Any]) -> None:
    found = walk("jackdaw"[:5], snapshot=snapshot(**changes))
    assert (found.tokens, found.targets) == (tuple("jack"), tuple("ackd"))
    assert found.decoder.dtype == "float32"
    assert found.decoder.tokens[0].tolist() == [9, 0, 2, 10]
    assert len(found.stops) == 27 + 4 * bool(changes.get("dropout"))
    ops = {stop.op for stop in found.stops}
    assert not any(op.startswith("tiled") for op in ops)  # it is walked with its weights P


def test_a_snapshot_s_decoder_has_the_trained_one_s_loss() -> None:
    """A window shorter than the context takes the first positions."""
    trained = snapshot()
    whole = Decoder(trained.config, 1)
    for name, values in whole.parameters.items():
        values[:] = trained.parameters[name]
    whole.tokens[0, :4], whole.targets[0, :4] = [9, 0, 2, 10], [0, 2, 10, 3]
    whole.evaluate()
    assert walk("jackd", snapshot=trained).loss == pytest.approx(whole.losses[0, :4].mean(), rel=1e-5)


def test_dropout_s_masks_are_the_seed_s() -> None:
    losses = [walk("fabled", snapshot=snapshot(dropout=0.3), seed=seed).loss for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


def test_a_snapshot_s_window_ends_where_its_context_does() -> None:
    assert len(walk("a" * 17, snapshot=snapshot()).tokens) == 16
    with pytest.raises(InputError, match="is 18: give at least 2, one and its target, and at most 17"):
        walk("a" * 18, snapshot=snapshot())
    with pytest.raises(InputError, match="'z'"):
        walk("zz", snapshot=snapshot())


def test_weights_that_overflow_are_one_line() -> None:
    trained = snapshot()
    trained.parameters["wte"][:] = np.float32(3e38)
    with pytest.raises(NonFinite, match="not finite"):
        walk("ab", snapshot=trained)


def test_weights_of_zero_can_be_walked_too() -> None:
    still = replace(snapshot(), parameters={name: 0 * values for name, values in snapshot().parameters.items()})
    found = walk("abc", snapshot=still)
    assert {stop.shown.norm for stop in found.stops} == {0}
    assert "Down the residual stream" in str(found)


def test_five_lines_of_a_notebook() -> None:
    found = fastbp.walk("alice was")
    assert found.stops[4].op == "gelu"
    assert repr(found) == f"<walk of 'alice was': 27 stops, loss {found.loss:.4f}>"
    assert "27 of 27    embedding: blocks.0.x" in str(found)
    text = io.StringIO()
    Console(file=text, width=80).print(found)
    assert "27 of 27    embedding: blocks.0.x" in text.getvalue()
    page = found._repr_html_()
    assert page.startswith("<iframe srcdoc=")
    assert "&lt;script" in page
    assert json.loads(json.dumps(found.to_json(), allow_nan=False)) == found.to_json()


def test_json_has_the_keys_of_the_contract() -> None:
    for stop in walk().to_json()["stops"]:
        assert {"stop", "op", "node", "needs", "shape", "norm", "rows"} <= set(stop)
