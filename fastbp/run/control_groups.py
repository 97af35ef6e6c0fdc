"""The control groups that this process is in, from its own up to the root: Linux limits memory and CPU time by them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def control_groups(controller: str, cgroups: Path, membership: Path) -> Iterator[tuple[int, Path]]:
    """(version, folder) of each group that `controller` may limit this process by, whether the folder exists or not:
    a container sees its own as the root.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = cgroups / controllers
            own = root / path.lstrip("/")
            for folder in (own, *own.parents):
                yield (1 if controllers else 2), folder
                if folder == root:
                    break
