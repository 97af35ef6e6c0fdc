"""Writes docs/commands.md from the commands' own parsers.

python docs/write_commands.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from fastbp.cli import COMMANDS, parser_of

PAGE = Path(__file__).with_name("commands.md")
HEAD = """\
# Commands

Every command with its options, written from the parsers by `python docs/write_commands.py`. `fastbp COMMAND --help`
says the same. Sizes are written `64MiB`, `1.5GiB` or `800000`, in bytes. Results go to standard output, progress to
standard error where that is a terminal.

| exit code | what |
| --- | --- |
| 0 | done |
| 1 | a check failed |
| 2 | bad usage or input; one line says what |
| 3 | does not fit into memory or the budget; the line says what would |
| 130, 143 | stopped by a signal, state saved |
"""


def page() -> str:
    """The page's text."""
    return "\n".join([HEAD, *(line for name in COMMANDS for line in section(name))])


def section(name: str) -> Iterator[str]:
    """A command: what it does, and a table for each group of its options."""
    parser, module = parser_of(name)
    yield from (f"## fastbp {name}", "", " ".join(str(module.__doc__).split()), "")
    for group in parser._action_groups:
        rows = [row(action) for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
        if rows:
            yield from (f"| {group.title} | |", "| --- | --- |", *rows, "")


def row(action: argparse.Action) -> str:
    """An option as it is written, and its help."""
    value = str(action.metavar) if action.nargs != 0 else ""
    written = " ".join([*action.option_strings, *([value] if value else [])])
    return f"| `{written}` | {str(action.help).replace('%%', '%').replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
