"""The CPU's caches, as the system shows them."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")


def cpu_caches() -> dict[str, int]:
    """Bytes of the first core's caches: {"L1d": 32768, ...}; empty where the system does not tell."""
    caches = {}
    for folder in sorted(FOLDER.glob("index*")):
        try:
            level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
            letter = {"Data": "d", "Instruction": "i"}.get(kind, "")
            caches[f"L{level}{letter}"] = int(size.removesuffix("K")) * 1024
        except (OSError, ValueError):
            continue
    return caches
