"""Resident memory of a process, code and libraries included."""

from __future__ import annotations

from pathlib import Path

import psutil


def rss_peak_bytes(process: int | None = None) -> int:
    """The most that a process (this one, where none is named) has had; where the system does not tell, what it has."""
    try:
        lines = Path(f"/proc/{process or 'self'}/status").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return int(psutil.Process(process).memory_info().rss)
