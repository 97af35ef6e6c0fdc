"""One kernel call of a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Argument:
    """An array of a kernel call: its role ("value", "gradient" or "scratch"), its port and where it lies."""

    role: str
    port: str
    address: int
    nbytes: int
    written: bool

    def overlaps(self, other: Argument) -> bool:
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


@dataclass(frozen=True)
class Instruction:
    """One kernel call: the action that it belongs to and its node, op and direction, for people; the rest for machines.

    `address` and `row` for a compiled kernel, which is cut into `tasks` for the workers to take, or into a share for
    each where that is 0; `call` for a NumPy one. `outputs` are the tensors that it writes.
    `arguments` and `kernel_address` (a kernel's address by its name, 0 where the backend has none) are for peepholes.
    """

    tick: int
    node: str
    op: str
    direction: str
    outputs: tuple[tuple[str, np.ndarray], ...]
    address: int = 0
    row: tuple[int, ...] = ()
    call: Callable[[], None] | None = None
    arguments: tuple[Argument, ...] = ()
    kernel_address: Callable[[str], int] | None = None
    tasks: int = 0
