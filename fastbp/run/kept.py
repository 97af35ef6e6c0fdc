"""What was measured on this machine and is remembered between runs: JSON files in the cache folder, a value a name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fastbp.run.cache import cache_root


def kept(file: str) -> dict[str, Any]:
    """What a file remembers; nothing where it is missing or broken."""
    try:
        found = json.loads((cache_root() / file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def keep(file: str, name: str, value: Any) -> Path:
    """Remembers a value; returns the file. Raises OSError where it cannot be written."""
    path = cache_root() / file
    values = {**kept(file), name: value}
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: another process may be reading.
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(values, indent=1), encoding="utf-8")
    os.replace(temporary, path)
    return path
