"""A profile as one HTML page that needs nothing else: its style, its script and its data are in it. What it is made of
lies in fastbp/report/html.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from fastbp.report.colours import CATEGORIES, STAGES
from fastbp.report.template import embedded, part

SCRIPTS = ("words", "memory", "view", "stack", "arena", "tick", "tables", "profile")
"""In this order: each uses what those before it define."""


def write_page(path: Path, profile: Mapping[str, Any]) -> None:
    """Writes the page of a profile, the JSON object of `fastbp profile --json`. Raises OSError where it cannot."""
    path.write_text(page(profile), encoding="utf-8")


def page(profile: Mapping[str, Any]) -> str:
    return Template(part("profile.html")).substitute(
        title=escape(str(profile["title"])),
        colours="\n".join(f"  --{_variable(name)}: {colour};" for name, colour in (CATEGORIES | STAGES).items()),
        style=part("style.css"),
        profile=embedded(profile),
        script="\n".join(part(f"{name}.js") for name in SCRIPTS),
    )


def _variable(name: str) -> str:
    """The CSS variable of a category or stage."""
    return name.replace(" ", "-")
