"""`fastbp walk`: the seed's window or a snapshot's, in a terminal, as JSON, as a picture and as a page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastbp.report.walk import walk
from fastbp.train.snapshot import load_snapshot

RunCommand = Callable[..., Any]


def test_the_seed_s_window_needs_no_argument(fastbp: RunCommand) -> None:
    ran = fastbp("walk")
    assert (ran.code, ran.err) == (0, "")
    assert "alice␣was" in ran.out
    assert fastbp("walk", "alice was").out == ran.out
    result = fastbp("walk", "--json").json
    assert result == walk().to_json()
    assert len(result["stops"]) >= 20
    assert {"stop", "op", "node", "needs", "shape", "norm", "rows"} <= set(result["stops"][0])


def test_the_options_reach_the_walk(fastbp: RunCommand) -> None:
    result = fastbp("walk", "the cat", "--block", 1, "--head", 1, "--seed", 4, "--policy", "full_last", "--json").json
    assert result == walk("the cat", seed=4, policy="full_last").to_json(block=1, head=1)
    budget = fastbp("walk", "--memory-budget", "31KiB", "--json").json
    assert budget["policy"] == "optimal(31.0 KiB)" or "optimal" in budget["policy"]
    assert budget["peak_bytes"] <= 31 * 1024


def test_a_trained_decoder_is_walked(fastbp: RunCommand, trained: Path) -> None:
    result = fastbp("walk", "7 times", "--from", trained, "--json").json
    assert result == walk("7 times", snapshot=load_snapshot(trained)).to_json()
    assert (result["decoder"], result["dtype"]) == ("snapshot of update 12", "float32")
    early = fastbp("walk", "7 times", "--from", trained / "snapshot-00000003", "--json").json
    assert early["loss"] > result["loss"]


def test_a_picture_and_a_page(fastbp: RunCommand, tmp_path: Path) -> None:
    picture, page = tmp_path / "walk.png", tmp_path / "walk.html"
    ran = fastbp("walk", "--plot", picture, "--html", page)
    assert ran.out.endswith(f"picture: {picture}\npage: {page}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("options", "parts", "code"),
    [
        (["Alice"], ["'A' at 0", "lower case"], 2),
        ([""], ["length in tokens is 0"], 2),
        (["x" * 200], ["length in tokens is 200", "at most 129"], 2),
        (["--block", "2"], ["--block 2", "from 0 to 1"], 2),
        (["--head", "9"], ["--head 9", "from 0 to 1"], 2),
        (["--policy", "ful"], ["policy 'ful'", "did you mean 'full'"], 2),
        (["--policy", "full", "--memory-budget", "1MiB"], ["give one of them"], 2),
        (["--memory-budget", "1KiB"], ["the smallest needs"], 3),
        (["--from", "nowhere"], ["nowhere is missing"], 2),
        (["--plot", "walk.pdf"], ["--plot walk.pdf", "PNG"], 2),
        (["--html", "no/such/folder/walk.html"], ["no folder"], 2),
        (["--seed", "-1"], ["--seed", "give at least 0"], 2),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, list) else None,
)
def test_what_is_refused(fastbp: RunCommand, options: list[str], parts: list[str], code: int) -> None:
    fastbp("walk", *options).refused(*parts, code=code)


def test_a_character_that_the_snapshot_s_text_lacked(fastbp: RunCommand, trained: Path) -> None:
    fastbp("walk", "7 time?", "--from", trained).refused("'?'", "position 6")
