"""A program: every kernel call of a schedule, with its arguments, ready to be run again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fastbp.run._loop import Instructions


@dataclass(frozen=True)
class Instruction:
    """One kernel call: the action that it belongs to and its node, op and direction, for people; the rest for machines.

    `address` and `row` for a compiled kernel, which is cut into `tasks` for the workers to take, or into a share for
    each where that is 0; `call` for a NumPy one. `outputs` are the tensors that it writes.
    """

    tick: int
    node: str
    op: str
    direction: str
    outputs: tuple[tuple[str, np.ndarray], ...]
    address: int = 0
    row: tuple[int, ...] = ()
    call: Callable[[], None] | None = None
    tasks: int = 0


@dataclass(frozen=True)
class Program:
    """Instructions in order, all compiled or all NumPy."""

    instructions: tuple[Instruction, ...]

    @cached_property
    def compiled(self) -> Instructions | None:
        """The table of addresses and argument rows; None for NumPy."""
        if any(instruction.call for instruction in self.instructions):
            return None
        width = max((len(instruction.row) for instruction in self.instructions), default=0)
        rows = np.zeros((len(self.instructions), width), np.int64)
        for i, instruction in enumerate(self.instructions):
            rows[i, : len(instruction.row)] = instruction.row
        addresses = np.array([instruction.address for instruction in self.instructions], np.int64)
        tasks = np.array([instruction.tasks for instruction in self.instructions], np.int64)
        return Instructions(addresses, rows, tasks)

    def then(self, other: Program) -> Program:
        """This program and behind it another, as one."""
        return Program(self.instructions + other.instructions)

    def in_tasks(self, tasks: int) -> Program:
        """This program with every instruction cut into `tasks`. Its scratch must be made for as many workers."""
        return Program(tuple(replace(instruction, tasks=tasks) for instruction in self.instructions))
