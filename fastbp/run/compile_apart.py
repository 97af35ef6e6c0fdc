"""A cold start's slowest kernels, compiled by a second process while this one compiles the others.

Numba compiles one kernel at a time, mostly in Python. Tiled attention takes a third of a cold start and shares no
product with the rest: the other process leaves it in the cache, from where this one loads it. Whatever goes wrong
there, it is compiled here.
"""

from __future__ import annotations

import atexit
import subprocess
import sys

APART = "tiled_attention"
"""The op whose kernels are compiled apart."""
_SCRIPT = f"""
import sys
from fastbp.run.numba_backend import address
for direction in ("forward", "backward"):
    address("{APART}", direction, sys.argv[1])
"""
_running: dict[str, subprocess.Popen[bytes]] = {}


def begin(dtype: str) -> None:
    """Starts the other process, silent, once for a dtype. It ends with this one at the latest."""
    if dtype in _running:
        return
    quiet = subprocess.DEVNULL
    try:
        process = subprocess.Popen([sys.executable, "-c", _SCRIPT, dtype], stdin=quiet, stdout=quiet, stderr=quiet)
    except OSError:
        return
    _running[dtype] = process
    atexit.register(process.kill)


def wait(dtype: str) -> None:
    """Returns when the other process has ended; at once where there is none."""
    if dtype in _running:
        _running[dtype].wait()
