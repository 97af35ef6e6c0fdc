"""What an audit of recomputation found, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastbp.base.units import format_bytes, format_count


def audit_line(found: Mapping[str, Any]) -> str:
    """One line for what `Audit.to_json` gives."""
    compared = f"{format_count(found['tensors'])} recomputed tensors, {format_bytes(found['bytes'])} compared"
    difference = found.get("difference")
    if difference is None:
        return f"every bit as in forward: {compared}"
    start, stop = difference["rows"]
    return (
        f"{difference['tensor']}, rows {start} to {stop - 1}, is not what it was in forward: recomputed by"
        f" {difference['op']} ({compared})"
    )
