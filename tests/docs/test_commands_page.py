"""docs/commands.md is what the parsers say."""

from __future__ import annotations

import runpy
from typing import Any

import pytest
from pages import DOCS

from fastbp.cli import COMMANDS, parser_of


@pytest.fixture(scope="module")
def writer() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "write_commands.py"))


def test_the_page_is_up_to_date(writer: dict[str, Any]) -> None:
    assert (DOCS / "commands.md").read_text(encoding="utf-8") == writer["page"](), "run python docs/write_commands.py"


def test_every_option_of_every_command_is_there(writer: dict[str, Any]) -> None:
    for name in COMMANDS:
        parser, _ = parser_of(name)
        text = "\n".join(writer["section"](name))
        written = {action.option_strings[0] for action in parser._actions if action.option_strings} - {"-h"}
        assert all(f"| `{word} " in text or f"| `{word}`" in text for word in written)
        assert text.count("| `-") == len(written)
