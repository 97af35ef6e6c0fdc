"""What pages are made of: the files in fastbp/report/html, and data that stands within them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HTML = Path(__file__).with_name("html")


def part(name: str) -> str:
    """The text of a file in fastbp/report/html."""
    return (HTML / name).read_text(encoding="utf-8")


def embedded(value: Mapping[str, Any]) -> str:
    """JSON that stands within a script element: no "<" in it, which could end the element. Raises ValueError for NaN
    and infinity, which are no JSON.
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")
