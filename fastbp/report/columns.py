"""Lines that fit a terminal of 80 columns."""

from __future__ import annotations

WIDTH = 80


def wrapped(line: str, indent: int) -> list[str]:
    """`line` broken at spaces, what follows indented by `indent`. A word that is too long alone stays whole."""
    lines = []
    while len(line) > WIDTH:
        cut = line.rfind(" ", indent + 1, WIDTH + 1)
        if cut < 0:
            cut = line.find(" ", WIDTH)
        if cut < 0:
            break
        lines.append(line[:cut])
        line = " " * indent + line[cut + 1 :]
    return [*lines, line]
