"""A walk as a page of its own: it needs no network, and steps through the stops with buttons and arrow keys. What it is
made of lies in fastbp/report/html.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

HTML = Path(__file__).with_name("html")
PARTS = {"page": "html", "style": "css", "script": "js"}


def walk_page(result: Mapping[str, Any]) -> str:
    """The page of what `fastbp walk --json` prints."""
    parts = {name: (HTML / f"walk.{kind}").read_text(encoding="utf-8") for name, kind in PARTS.items()}
    # A "<" in a token must not end the element that holds the data.
    data = json.dumps(result, allow_nan=False).replace("<", "\\u003c")
    return Template(parts["page"]).substitute(style=parts["style"], script=parts["script"], walk=data)
