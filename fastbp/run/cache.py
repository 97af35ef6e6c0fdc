"""Where compiled kernels and tuned settings are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """$FASTBP_CACHE_DIR, else the user's cache folder. It need not exist."""
    root = os.environ.get("FASTBP_CACHE_DIR")
    if root:
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastbp"
