"""Workers: threads that stay, waiting inside the loop without the GIL for the next program."""

from __future__ import annotations

import os
import threading
from weakref import WeakSet

from fastbp.base.errors import InputError
from fastbp.run._loop import Instructions, Team
from fastbp.run.cores import cores_are_alike
from fastbp.run.cores import physical_cores as physical_cores

TINY_FLOPS = 2_000_000
"""An update below this is faster on one worker than what it costs to keep two in step."""


TASKS_A_WORKER = 4
"""Where cores differ. With one of two cores held to half its speed an update of `small` took 25 ms with 2, 4 or 8, not
35, and one of `medium` 834, 846 and 781, not 1055; with equal cores `medium` takes 4 to 6 % longer with 2 or 4."""


def choose_parts(workers: int) -> int:
    """Into how many parts a kernel is cut: a share for each worker, or more where some cores are slower than others."""
    return workers if workers == 1 or cores_are_alike() else workers * TASKS_A_WORKER


def choose_workers(asked: int | None, flops_per_update: int) -> int:
    """The number of workers: what was asked for, else the physical cores, else one for a tiny model.

    Raises InputError for fewer than one or more than there are cores.
    """
    cores = physical_cores()
    if asked is None:
        return 1 if flops_per_update < TINY_FLOPS else cores
    if not 1 <= asked <= cores:
        raise InputError(f"--workers {asked}: this machine offers 1 to {cores} physical cores")
    return asked


class Workers:
    """A team of `count` workers, the caller among them. Threads start at the first run and end with the object.

    After a fork the child has no threads, and a lock that was held stays so: it gets a new lock, and starts threads of
    its own at its first run.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._begin_anew()
        _ALL.add(self)

    def _begin_anew(self) -> None:
        self.lock = threading.Lock()
        self._team: Team | None = None

    def run(self, instructions: Instructions) -> None:
        """Runs a program with all workers; a second thread of the caller's waits for its turn."""
        with self.lock:
            if self._team is None:
                self._team = self._started()
            self._team.run(instructions)

    def _started(self) -> Team:
        team = Team(self.count)
        try:
            for worker in range(1, self.count):
                threading.Thread(target=team.serve, args=(worker,), name=f"fastbp-{worker}", daemon=True).start()
        except BaseException:
            team.stop()  # a team that lacks a worker would wait for it for ever
            raise
        return team

    def close(self) -> None:
        """Ends the threads."""
        with self.lock:
            if self._team is not None:
                self._team.stop()
            self._team = None

    def __del__(self) -> None:
        self.close()


_ALL: WeakSet[Workers] = WeakSet()


def _after_fork() -> None:
    for workers in list(_ALL):
        workers._begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
