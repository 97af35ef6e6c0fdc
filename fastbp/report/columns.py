"""Lines and tables that fit a terminal of 80 columns."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 80


def wrapped(line: str, indent: int, width: int = WIDTH) -> list[str]:
    """`line` broken at spaces, what follows indented by `indent`. A word that is too long alone stays whole."""
    lines = []
    while len(line) > width:
        cut = line.rfind(" ", indent + 1, width + 1)
        if cut < 0:
            cut = line.find(" ", width)
        if cut < 0:
            break
        lines.append(line[:cut])
        line = " " * indent + line[cut + 1 :]
    return [*lines, line]


def table_lines(
    title: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,), gap: int = 2
) -> list[str]:
    """A table without colours; columns not in `left` are flush right, `gap` apart. Cells of too wide a row wrap."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for i, name in enumerate(title):
        table.add_column(name, justify="left" if i in left else "right")
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    Console(file=text, width=WIDTH, color_system=None, markup=False, emoji=False, highlight=False).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]
