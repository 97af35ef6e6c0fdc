"""Values that show themselves: in 80 columns, the same for print, rich, IPython and notebooks, and nothing but text."""

from __future__ import annotations

import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fastbp.base.shown import WIDTH, Fact, Shown, fact_lines

WORDS = st.lists(st.text("ab[]<>&/:.", min_size=1, max_size=30), max_size=20).map(" ".join)


class Value(Shown):
    def __init__(self, text: str) -> None:
        self.text = text

    def facts(self) -> list[Fact]:
        return [("what", self.text), ("and more", "nothing")]


def by_rich(value: object) -> str:
    text = io.StringIO()
    Console(file=text, width=WIDTH, color_system=None).print(value)
    return text.getvalue()


@given(WORDS)
def test_facts_stand_in_two_columns(text: str) -> None:
    lines = fact_lines([("what", text), ("and more", "nothing")])
    assert max(map(len, lines)) <= WIDTH
    assert lines[0].startswith("what")
    assert lines[-1] == "and more  nothing"
    assert all(line[:10].strip() == "" for line in lines[1:-1])
    assert " ".join(line[10:] for line in lines[:-1]).split() == text.split()


def test_there_may_be_nothing_to_say() -> None:
    assert fact_lines([]) == []
    assert fact_lines([("what", "")]) == ["what"]


@given(WORDS)
def test_rich_prints_what_print_does(text: str) -> None:
    assert by_rich(Value(text)).splitlines() == str(Value(text)).splitlines()


def test_nothing_is_markup() -> None:
    for text in ("blocks.0.u[a:b]", "[bold]full[/bold]", ":smile: [red]x", "<b>full</b>"):
        assert text in by_rich(Value(text))


def test_html_is_escaped() -> None:
    html = Value("<script>alert('x')</script> & [red]")._repr_html_()
    assert html.startswith("<pre>what      &lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; [red]\n")
    assert html.endswith("nothing</pre>")
    assert html.count("<") == 2


def test_ipython_prints_the_lines() -> None:
    written: list[str] = []

    class Printer:
        text = written.append

    printer: Any = Printer()
    Value("this")._repr_pretty_(printer, False)
    assert written == [str(Value("this"))]
