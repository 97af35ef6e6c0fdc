"""Every call that a planner may choose is measured once, and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.policy.cost import AGAIN, BACKWARD, FORWARD, FROM_KEPT, TO_KEEP
from fastbp.policy.optimal import Planner
from fastbp.run import seconds
from fastbp.run.places import APART, NEAR
from fastbp.run.seconds import seconds_of_calls
from fastbp.run.timed_walk import Key

CONFIG = DecoderConfig(2, 32, 2, 64, 128, 50)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTBP_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("backend", ["cython", "numpy"])
def test_a_planner_finds_every_call(backend: str) -> None:
    cost = seconds_of_calls(CONFIG, 2, backend=backend)
    planner = Planner(decoder_graph(CONFIG, 2), cost)
    assert planner.search(planner.smallest_bytes).cost > planner.search(1 << 40).cost > 0  # type: ignore[union-attr]
    assert all(type(nanoseconds) is int and nanoseconds > 0 for nanoseconds in cost.nanoseconds.values())


def test_calls_are_measured_with_what_is_kept_and_with_what_is_dropped() -> None:
    nanoseconds = seconds_of_calls(CONFIG, 2).nanoseconds
    for node, whens in {"u": (FORWARD, TO_KEEP), "g": (BACKWARD, FROM_KEPT), "x": (TO_KEEP,)}.items():
        assert all((node, when, 64) in nanoseconds for when in whens), node
    assert ("u", AGAIN, 64) in nanoseconds


def test_a_lossy_planner_finds_every_conversion_too() -> None:
    cost = seconds_of_calls(CONFIG, 2, lossy=True)
    planner = Planner(decoder_graph(CONFIG, 2), cost, lossy=True)
    assert planner.search(planner.smallest_bytes)
    packed = {name.split()[1] for name, _, _ in cost.nanoseconds if name.startswith("unpack ")}
    assert packed == {"x", "ln1", "qkv", "o", "mid", "ln2", "u", "g"}
    exact = seconds_of_calls(CONFIG, 2).nanoseconds
    assert exact.keys() == {key for key in cost.nanoseconds if "pack " not in key[0]}


def test_it_is_measured_once_for_a_shape_whatever_its_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    first = seconds_of_calls(CONFIG, 2)
    monkeypatch.setattr(seconds, "_measure", lambda *_: pytest.fail("measured again"))
    assert seconds_of_calls(DecoderConfig(5, 32, 2, 64, 128, 50), 2) == first
    with pytest.raises(pytest.fail.Exception):
        seconds_of_calls(CONFIG, 3)


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FASTBP_CACHE_DIR", str(tmp_path / "file"))
    assert seconds_of_calls(DecoderConfig(1, 16, 2, 32, 8, 5), 1).nanoseconds


def test_costs_are_of_one_place_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[str | None] = []

    def measure(*arguments: Any) -> tuple[str, dict[Key, float]]:
        place = arguments[6] or APART
        places.append(arguments[6])
        return place, {("u", FORWARD, 64): 1e-6 if place == NEAR else 3e-6}

    monkeypatch.setattr(seconds, "_measure", measure)
    first = seconds_of_calls(CONFIG, 2)
    assert (first.place, seconds_of_calls(CONFIG, 2), seconds_of_calls(CONFIG, 2, place=APART)) == (APART, first, first)
    near = seconds_of_calls(CONFIG, 2, place=NEAR)
    assert (near.place, near.nanoseconds) == (NEAR, {("u", FORWARD, 64): 1000})
    assert seconds_of_calls(CONFIG, 2) == near, "NEAR is what plans are made for"
    assert places == [None, NEAR]
