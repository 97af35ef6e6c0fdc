"""The runner runs a program. No decisions, no allocation; everything was decided when it was bound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fastbp.run.instruction import Instruction
from fastbp.run.program import Program
from fastbp.run.workers import Workers


class Runner:
    """Runs programs with a team of workers; NumPy's in the calling thread."""

    def __init__(self, workers: int) -> None:
        self.workers = Workers(workers)

    def run(self, program: Program) -> None:
        """Runs a program to its end."""
        instructions = program.fused
        if instructions is not None:
            self.workers.run(instructions)
            return
        with self.workers.lock, np.errstate(all="ignore"):
            for instruction in program.instructions:
                assert instruction.call is not None
                instruction.call()

    def run_watched(self, program: Program, watch: Callable[[Instruction], bool]) -> bool:
        """Runs a program one instruction at a time in this thread; stops early and returns False where `watch` says
        so. `watch` itself must run nothing with this runner, which waits for its turn as any other would.
        """
        instructions = program.compiled
        with self.workers.lock:
            for i, instruction in enumerate(program.instructions):
                if instructions is not None:
                    instructions.run_alone(i, i + 1, self.workers.count)
                else:
                    assert instruction.call is not None
                    with np.errstate(all="ignore"):
                        instruction.call()
                if not watch(instruction):
                    return False
            return True
