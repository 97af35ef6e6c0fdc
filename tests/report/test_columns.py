"""Lines of at most 80 columns that lose no word."""

from __future__ import annotations

import random

import pytest

from fastbp.report.columns import WIDTH, table_lines, wrapped


def test_a_short_line_stays() -> None:
    for line in ("", "policy      full", "x" * WIDTH, "a " * (WIDTH // 2)):
        assert wrapped(line, 12) == [line]


def test_a_break_is_at_the_last_space_that_fits() -> None:
    line = "kept        " + "a" * 68 + " b"
    assert wrapped(line, 12) == ["kept        " + "a" * 68, "            b"]
    line = "kept        a " + "b" * 66 + " c"
    assert wrapped(line, 12) == ["kept        a " + "b" * 66, "            c"]
    line = "kept        " + "a" * 69 + " b"  # too long by one, and no space before it but the indent's
    assert wrapped(line, 12) == ["kept        " + "a" * 69, "            b"]


@pytest.mark.parametrize("indent", [2, 12, 17])
def test_no_word_is_lost(indent: int) -> None:
    draw = random.Random(indent)
    for _ in range(200):
        words = ["w" * draw.randint(1, 60) for _ in range(draw.randint(1, 30))]
        line = "name".ljust(indent) + " ".join(words)
        lines = wrapped(line, indent)
        assert " ".join(lines).split() == line.split()
        assert all(len(each) <= WIDTH for each in lines)
        assert all(each.startswith(" " * indent) and each[indent] != " " for each in lines[1:])


def test_a_word_that_is_too_long_stays_whole() -> None:
    path = "/" + "x" * 100
    assert wrapped(f"snapshot    {path} and more", 12) == [f"snapshot    {path}", "            and more"]
    assert wrapped(path, 12) == [path]


def test_a_table() -> None:
    rows = [("a", "1"), ("[red]long[/red] :smile:", "23")]
    title, rule, first, second = table_lines(("name", "n"), rows)
    assert (title, first) == ("name                      n", "a                         1")
    assert second == "[red]long[/red] :smile:  23"
    assert set(rule) == {"─"}
    assert table_lines(("name", "n"), rows, left=(), gap=1)[2] == "                      a  1"


def test_a_table_too_wide_wraps() -> None:
    lines = table_lines(("name", "what"), [("a " * 60, "b " * 60)], left=(0, 1))
    assert max(map(len, lines)) <= WIDTH
    assert "".join(lines).count("a ") >= 50
