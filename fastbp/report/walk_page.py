"""A walk as a page of its own: it needs no network, and steps through the stops with buttons and arrow keys. What it is
made of lies in fastbp/report/html.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Any

from fastbp.report.template import embedded, part

PARTS = {"page": "html", "style": "css", "script": "js"}


def walk_page(result: Mapping[str, Any]) -> str:
    """The page of what `fastbp walk --json` prints."""
    parts = {name: part(f"walk.{kind}") for name, kind in PARTS.items()}
    return Template(parts["page"]).substitute(style=parts["style"], script=parts["script"], walk=embedded(result))
