"""Whether a run fits into memory, asked before anything is allocated: a killed process tells its user nothing."""

from __future__ import annotations

from pathlib import Path

import psutil

from fastbp.base.errors import DoesNotFit
from fastbp.base.units import format_bytes

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Memory that this process may still take: what the system has free, or less where a control group limits it."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - used))


def require_memory(needed_bytes: int, what: str) -> None:
    """Raises DoesNotFit where `needed_bytes` are not there."""
    free = available_bytes()
    if needed_bytes > free:
        raise DoesNotFit(
            f"{what} needs {format_bytes(needed_bytes)}, but {format_bytes(free)} are free:"
            " take --policy full, a smaller --batch or a smaller --context"
        )
