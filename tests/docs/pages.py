"""The documentation as tests read it: its pages, their blocks, and the prose around these."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\|(.*)\|$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """A page of Markdown."""

    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def prose(self) -> str:
        """The text without its blocks."""
        return _BLOCK.sub("", self.text)

    def blocks(self, *kinds: str) -> list[tuple[str, str]]:
        """(kind, content) of the blocks of some kinds, in order."""
        return [(kind, content) for kind, content in _BLOCK.findall(self.text) if kind in kinds]

    def sections(self) -> dict[str, str]:
        """The text below each heading of the second level."""
        parts = re.split(r"^## (.+)$", self.text, flags=re.MULTILINE)
        return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, headings and rules left out; blocks have none."""
    cells = [[cell.strip() for cell in row.split("|")] for row in _ROW.findall(_BLOCK.sub("", text))]
    rules = [i for i, row in enumerate(cells) if all(re.fullmatch(":?-+:?", cell) for cell in row)]
    return [row for i, row in enumerate(cells) if i not in rules and i + 1 not in rules]


def code(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", text)


DOCS = ROOT / "docs"
PAGES = [Page(path) for path in (ROOT / "README.md", ROOT / "benchmarks/README.md", *sorted(DOCS.rglob("*.md")))]
