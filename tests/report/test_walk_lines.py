"""A walk as a person reads it in a terminal."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fastbp.report.derivatives import DERIVATIVES, SUM
from fastbp.report.walk import walk
from fastbp.report.walk_lines import short, visible, walk_lines


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return walk().to_json()


def paragraph(lines: list[str], number: int) -> str:
    """What is said at a stop, its line breaks taken out."""
    text = "\n".join(lines)
    found = re.search(rf"^ ?{number} of .*?(?=\n\n)", text, re.M | re.S)
    assert found
    return " ".join(found[0].split())


@pytest.mark.parametrize("text", ["alice was", "ab", "to be, or not to be, that is the question", "x" * 129])
@pytest.mark.parametrize("policy", ["save_all", "full"])
def test_everything_fits_80_columns(text: str, policy: str) -> None:
    lines = walk_lines(walk(text, policy=policy).to_json())
    assert max(map(len, lines)) <= 80
    assert not any(line != line.rstrip() for line in lines)


def test_a_stop_says_what_it_does_needs_and_finishes(result: dict[str, Any]) -> None:
    text = paragraph(walk_lines(result), 4)
    stop = result["stops"][3]
    assert text.startswith(f"4 of 27 linear: blocks.1.z (tick {stop['ticks'][0]}) y = x·W + b dx = dy·Wᵀ dW += xᵀ·dy")
    assert "needs blocks.1.g 8×32, 2.0 KiB: kept always there: blocks.1.mlp.w2 32×16" in text
    assert "d:blocks.1.mlp.b2 16, norm" in text
    assert text.endswith("finished")
    assert f"a {short(stop['rows'][0])}" in text


def test_what_was_recomputed_says_when() -> None:
    text = " ".join(walk_lines(walk(policy="full").to_json()))
    assert re.search(r"blocks\.0\.u 8×32, 2\.0 KiB: recomputed by R blocks\.0\.u \(tick \d+\)", text)


def test_an_op_is_put_into_words_once(result: dict[str, Any]) -> None:
    text = " ".join(" ".join(walk_lines(result)).split())
    for derivative in [DERIVATIVES[stop["op"]] for stop in result["stops"]] + [SUM]:
        assert text.count(derivative.words) == 1
    assert text.count("dx = dy·Wᵀ") == 6


def test_ds_is_a_lower_triangle_of_numbers(result: dict[str, Any]) -> None:
    lines = walk_lines(result)
    start = next(i for i, line in enumerate(lines) if "dS head 0" in line)
    rows = [line.split() for line in lines[start + 1 : start + 9]]
    assert [row[0] for row in rows] == ["a", "l", "i", "c", "e", "␣", "w", "a"]
    for i, row in enumerate(rows[1:], start=1):
        assert "·" not in row[1 : i + 2]
        assert row[i + 2 :] == ["·"] * (7 - i)
    largest = max(abs(float(cell)) for row in rows for cell in row[1:] if cell != "·")
    assert largest == 1


def test_a_longer_ds_is_drawn_in_marks_and_a_long_one_left_to_the_picture() -> None:
    lines = walk_lines(walk("to be, or not to be").to_json())
    start = next(i for i, line in enumerate(lines) if "dS head 0" in line)
    drawn = [line[14:] for line in lines[start + 2 : start + 20]]
    assert [len(line) <= i + 1 for i, line in enumerate(drawn)] == [True] * 18
    assert set("".join(drawn)) <= set("#+-. ")
    assert "#" in "".join(drawn)
    assert "--plot and --html show it" in " ".join(" ".join(walk_lines(walk("x" * 100).to_json())).split())


def test_the_stream_has_a_column_a_token(result: dict[str, Any]) -> None:
    lines = walk_lines(result)
    start = next(i for i, line in enumerate(lines) if line.startswith("Down the residual stream"))
    assert lines[start].endswith("1e-2")
    assert lines[start + 1].split() == ["a", "l", "i", "c", "e", "␣", "w", "a"]
    names = [line.split()[0] for line in lines[start + 2 : start + 7]]
    assert names == ["final.x", "blocks.1.mid", "blocks.1.x", "blocks.0.mid", "blocks.0.x"]
    last = [float(cell) for cell in lines[start + 6].split()[1:]]
    assert last == pytest.approx([100 * size for size in result["stops"][-1]["rows"]], abs=6e-4)


def test_one_block_s_stops_alone() -> None:
    lines = walk_lines(walk().to_json(block=0))
    numbers = [int(line.split()[0]) for line in lines if re.match(r" ?\d+ of 27 ", line)]
    assert numbers == list(range(15, 27))


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0"), (0.0211, "0.021"), (1.36, "1.4"), (3.46e-4, "3.5e-4"), (99.9, "1e+02"), (5e7, "5.0e7")]
)
def test_sizes_are_short(size: float, text: str) -> None:
    assert short(size) == text


def test_white_space_is_seen() -> None:
    assert [visible(token) for token in (" ", "\n", "\t", "\x1b", "é")] == ["␣", "⏎", "⇥", "\ufffd", "é"]
