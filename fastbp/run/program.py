"""A program: every kernel call of a schedule, with its arguments, ready to be run again and again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fastbp.run._loop import Instructions
from fastbp.run.instruction import Instruction
from fastbp.run.peephole import fuse


@dataclass(frozen=True)
class Program:
    """Instructions in order, all compiled or all NumPy."""

    instructions: tuple[Instruction, ...]

    @cached_property
    def compiled(self) -> Instructions | None:
        """The table of addresses and argument rows, one an instruction; None for NumPy."""
        return _table(self.instructions)

    @cached_property
    def fused(self) -> Instructions | None:
        """The same with adjacent calls fused: what a run takes that nobody watches."""
        return _table(fuse(self.instructions))

    def then(self, other: Program) -> Program:
        """This program and behind it another, as one."""
        return Program(self.instructions + other.instructions)

    def in_tasks(self, tasks: int) -> Program:
        """This program with every instruction cut into `tasks`. Its scratch must be made for as many workers."""
        return Program(tuple(replace(instruction, tasks=tasks) for instruction in self.instructions))


def _table(instructions: tuple[Instruction, ...]) -> Instructions | None:
    """Addresses, argument rows (zero-padded to one width) and tasks; None where an instruction is NumPy's."""
    if any(instruction.call for instruction in instructions):
        return None
    width = max((len(instruction.row) for instruction in instructions), default=0)
    rows = np.zeros((len(instructions), width), np.int64)
    for i, instruction in enumerate(instructions):
        rows[i, : len(instruction.row)] = instruction.row
    addresses = np.array([instruction.address for instruction in instructions], np.int64)
    tasks = np.array([instruction.tasks for instruction in instructions], np.int64)
    return Instructions(addresses, rows, tasks)
