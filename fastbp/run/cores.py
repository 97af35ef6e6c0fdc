"""Cores: how many threads this process may keep busy without one waiting for another.

Not hyperthreads, since two of them share one core's vector units; no more than the affinity mask allows; and no more
than a control group's quota of CPU time pays for, since the group sleeps for the rest of a period that it has used up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from fastbp.run.control_groups import CGROUPS, MEMBERSHIP, control_groups

CPUS = Path("/sys/devices/system/cpu")
ALIKE = 0.85
"""Cores of one kind differ in their highest clock too, by some percent; small ones reach two thirds or less of it."""


def physical_cores(cpus: Path = CPUS, cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Physical cores that this process may keep busy, at least 1."""
    return max(1, min([_allowed_cores(cpus), *_paid_for(cgroups, membership)]))


def _allowed_cores(cpus: Path) -> int:
    """Different cores in the affinity mask; where the system tells no topology, no more than it has cores."""
    if not hasattr(os, "sched_getaffinity"):
        return psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    try:
        return len({(cpus / f"cpu{cpu}/topology/thread_siblings_list").read_text() for cpu in allowed})
    except OSError:
        return min(len(allowed), psutil.cpu_count(logical=False) or len(allowed))


def _paid_for(cgroups: Path, membership: Path) -> Iterator[int]:
    """Whole CPUs' worth of time that each control group with a quota gives."""
    for version, group in control_groups("cpu", cgroups, membership):
        try:
            if version == 2:
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            given = int(quota) // int(period)
        except (OSError, ValueError):  # no such group, or no quota: "max"
            continue
        if int(quota) > 0:  # version 1 writes −1 for none
            yield given


def cores_are_alike(cpus: Path = CPUS) -> bool:
    """Whether the CPUs that this process may run on are equally fast, as far as the system tells: laptops pair fast
    cores with small ones.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    for measure in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        try:
            speeds = [int((cpus / f"cpu{cpu}" / measure).read_text()) for cpu in allowed]
        except (OSError, ValueError):
            continue
        if speeds:
            return min(speeds) >= ALIKE * max(speeds)
    return True
