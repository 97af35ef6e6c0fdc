"""The CPU's name, for people and for what is remembered of it. Never a reason to use an instruction."""

from __future__ import annotations

import platform
from functools import cache


@cache
def cpu_name() -> str:
    """As the system shows it, "unknown" where it does not."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
