"""Whether a run fits into memory, asked before anything is allocated: a killed process tells its user nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from fastbp.base.errors import DoesNotFit
from fastbp.base.units import format_bytes
from fastbp.run.control_groups import CGROUPS, MEMBERSHIP, control_groups

_FILES = {
    2: ("memory.max", "memory.current", ("inactive_file", "active_file")),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
}
"""Version of control groups: its files for limit and use, and the rows of memory.stat that count cached files."""


def available_bytes(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Memory that this process may still take: what the system has free, or less where a control group limits it."""
    free = int(psutil.virtual_memory().available)
    return max(0, min([free, *_left_in_groups(cgroups, membership)]))


def _left_in_groups(cgroups: Path, membership: Path) -> Iterator[int]:
    """What is left in each control group with a limit that this process is in, from its own up to the root."""
    for version, group in control_groups("memory", cgroups, membership):
        limit, use, cache = _FILES[version]
        try:
            limit_bytes = int((group / limit).read_text())
            used_bytes = int((group / use).read_text())
            rows = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such group, or no limit: "max"
            continue
        # The system gives up cached files before it kills; they only look like memory in use.
        yield limit_bytes - used_bytes + sum(int(rows.get(row, 0)) for row in cache)


@dataclass(frozen=True)
class Smaller:
    """Something else to ask for. It needs `least_bytes` at least; `exact_bytes` finds out, which may take a while."""

    option: str
    least_bytes: int
    exact_bytes: Callable[[], int]


def require_memory(needed_bytes: int, what: str, smaller: Iterable[Smaller] = ()) -> None:
    """Raises DoesNotFit where `needed_bytes` are not there, and names the first of `smaller` that would fit."""
    free = available_bytes()
    if needed_bytes <= free:
        return
    line = f"{what} needs {format_bytes(needed_bytes)}, but {format_bytes(free)} are free"
    for other in smaller:
        if other.least_bytes <= free and (other_bytes := other.exact_bytes()) <= free:
            raise DoesNotFit(f"{line}: {other.option} would fit, with {format_bytes(other_bytes)}")
    raise DoesNotFit(f"{line}: take a smaller --batch, --context or decoder")
