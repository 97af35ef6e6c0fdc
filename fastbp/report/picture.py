"""The picture of a run, `curves.png` in its folder: drawn when it ends, and now and then while it trains.

While it trains a process of its own draws, so that training neither waits for it nor has matplotlib in its memory. That
process takes what processor time the workers leave it, and begins so seldom that it comes to a hundredth of the run's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastbp.base.late import Late
from fastbp.report.curves import training_panels, training_title
from fastbp.train.metrics import read_metrics

NAME = "curves.png"
FIRST_SECONDS = 5.0 if hasattr(os, "SCHED_IDLE") else 60.0
"""Until the first picture is begun: later where the system has no priority that leaves the workers what they want."""
SHARE = 0.01
"""Processor time of drawing beside the time of the run."""
LOOK_SECONDS = 1.0
"""Between two looks at whether a picture is ready."""

_SCRIPT = "import pathlib, sys; from fastbp.report.picture import draw; draw(pathlib.Path(sys.argv[1]))"

# matplotlib takes half a second to import.
_training_curves = Late("fastbp.report.plot", "training_curves")


def draw(folder: Path) -> Path:
    """Draws the record of a run into its folder, whole or not at all. Raises OSError where it cannot be written."""
    record, path = read_metrics(folder), folder / NAME
    temporary = folder / f".{NAME}.tmp"
    try:
        _training_curves(training_panels(record), training_title(record), temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


class Redrawing:
    """Called after every update, it has the picture drawn again where that is due. Whatever goes wrong there, the run
    goes on without the picture.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._began, self._children_seconds = 0.0, 0.0
        self._due = time.monotonic() + FIRST_SECONDS

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + LOOK_SECONDS
        if self._process is None:
            self._began, self._children_seconds = now, _children_seconds()
            self._process = _begin(self._folder)
        elif self._process.poll() is not None:
            self._process = None
            self._due = self._began + (_children_seconds() - self._children_seconds) / SHARE

    def stop(self) -> None:
        """Ends the drawing that is under way, if any; the picture is then the one before."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def redrawing(folder: Path) -> Iterator[Redrawing]:
    """A Redrawing that is stopped at the end."""
    redraw = Redrawing(folder)
    try:
        yield redraw
    finally:
        redraw.stop()


def _begin(folder: Path) -> subprocess.Popen[bytes] | None:
    """Starts a process that draws, silent. Ctrl-C is not for it, so it has a group of its own, but not a session: Linux
    would give one as much of the processor as it gives this one.
    """
    quiet = subprocess.DEVNULL
    command = [sys.executable, "-c", _SCRIPT, str(folder)]
    try:
        process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, process_group=0)
    except OSError:
        return None
    _give_way(process.pid)
    return process


def _give_way(process: int) -> None:
    """The lowest priority that the system has."""
    with suppress(OSError):
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.setpriority(os.PRIO_PROCESS, process, 19)


def _children_seconds() -> float:
    """Processor time of all processes that this one began and that have ended."""
    times = os.times()
    return times.children_user + times.children_system
