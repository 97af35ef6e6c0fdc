"""How much of a product's operands a block holds: the default, or what `fastbp warmup --tune` found for this CPU.

The choice moves no bit: an element is one chain of multiply-adds in the order of k whatever the blocks. A tuned block
is no larger than the default, which the scratch in a plan is sized for, so a plan's bytes do not depend on it either.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path

from fastbp.run.cpu_name import cpu_name
from fastbp.run.kept import keep, kept
from fastbp.simd.scratch import DEPTH, PANELS, ROWS

FILE = "blocking.json"


@dataclass(frozen=True)
class Blocking:
    """Terms of a packed panel, rows of A that meet a block of panels, panels in it. Raises ValueError beyond the
    default.
    """

    depth: int = DEPTH
    rows: int = ROWS
    panels: int = PANELS

    def __post_init__(self) -> None:
        for value, most in zip(astuple(self), (DEPTH, ROWS, PANELS), strict=True):
            if type(value) is not int or not 0 < value <= most:
                raise ValueError(f"blocks of {astuple(self)}: at most {(DEPTH, ROWS, PANELS)}")


def _key(backend: str, dtype: str) -> str:
    return f"{backend} {dtype} on {cpu_name()}"


def remembered(backend: str, dtype: str) -> Blocking:
    """This CPU's blocking, the default where none was tuned or what was kept cannot be used."""
    try:
        return Blocking(*kept(FILE)[_key(backend, dtype)])
    except (KeyError, TypeError, ValueError):
        return Blocking()


def remember(backend: str, dtype: str, blocking: Blocking) -> Path:
    """Keeps a blocking for later runs on this CPU; returns the file. Raises OSError where it cannot be written."""
    return keep(FILE, _key(backend, dtype), list(astuple(blocking)))
