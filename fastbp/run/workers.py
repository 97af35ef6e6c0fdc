"""Workers: threads that stay, waiting inside the loop without the GIL for the next program."""

from __future__ import annotations

import os
import threading

import psutil

from fastbp.base.errors import InputError
from fastbp.run._loop import Instructions, Team

TINY_FLOPS = 2_000_000
"""An update below this is faster on one worker than what it costs to keep two in step."""


def physical_cores() -> int:
    """Physical cores that this process may run on."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


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

    After a fork the child has no threads; it starts its own at its first run.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.lock = threading.Lock()
        self._team: Team | None = None
        self._owner = 0

    def run(self, instructions: Instructions) -> None:
        """Runs a program with all workers; a second thread of the caller's waits for its turn."""
        with self.lock:
            if self._team is None or self._owner != os.getpid():
                self._start()
            assert self._team is not None
            self._team.run(instructions)

    def _start(self) -> None:
        team = Team(self.count)
        try:
            for worker in range(1, self.count):
                threading.Thread(target=team.serve, args=(worker,), name=f"fastbp-{worker}", daemon=True).start()
        except RuntimeError:
            team.stop()  # a team that lacks a worker would wait for it for ever
            raise
        self._team, self._owner = team, os.getpid()

    def close(self) -> None:
        """Ends the threads."""
        with self.lock:
            if self._team is not None and self._owner == os.getpid():
                self._team.stop()
            self._team = None

    def __del__(self) -> None:
        self.close()
