"""Values that show themselves in a few lines: printed, by rich, and as the last line of a notebook's cell."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

WIDTH = 80

Fact = tuple[str, str]
"""The name of something, and what there is to say about it."""


class Shown:
    """A value that says what it is in `facts`, or in `lines` of its own: plain text of at most WIDTH columns.

    rich and IPython look for methods by their names, so that neither needs to be imported.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # IPython takes a class's own __repr__, which a dataclass has, before what it inherits.
        cls._repr_pretty_ = Shown._repr_pretty_  # type: ignore[method-assign]

    def facts(self) -> list[Fact]:
        raise NotImplementedError

    def lines(self) -> list[str]:
        """What is shown."""
        return fact_lines(self.facts())

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        # Not as markup, for which the rows of "blocks.0.u[a:b]" might be taken.
        yield console.render_str(str(self), markup=False, emoji=False, highlight=False)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def fact_lines(facts: Sequence[Fact]) -> list[str]:
    """Two columns; what is too long goes on below itself."""
    indent = 2 + max((len(name) for name, _ in facts), default=0)
    lines: list[str] = []
    for name, text in facts:
        first, *more = textwrap.wrap(text, WIDTH - indent, break_on_hyphens=False) or [""]
        lines += [f"{name:<{indent}}{first}".rstrip(), *(" " * indent + part for part in more)]
    return lines
