"""Adjacent kernel calls that one kernel does, so that what passes between them is still in the cache.

The plan and the schedule do not know. A pair is fused where the second call reads what the first has made, and writes
nowhere that the first still works; the kernel does the same arithmetic in the same order, so the bits are the same. Its
argument row is the first call's row with the second's behind it. Where a backend has no such kernel, two calls remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastbp.run.instruction import Argument, Instruction

Port = tuple[str, str]
"""(role, port) of a call's array; the role is "value" or "gradient"."""


@dataclass(frozen=True)
class Peephole:
    """A pair of (op, direction), and the array that the first makes and the second reads, as each of them names it."""

    first: tuple[str, str]
    second: tuple[str, str]
    made: Port
    read: Port

    @property
    def kernel(self) -> str:
        """The fused kernel's name."""
        return "_".join(self.first + self.second)


PEEPHOLES = (
    Peephole(("linear", "forward"), ("gelu", "forward"), ("value", "y"), ("value", "x")),
    Peephole(("linear", "forward"), ("residual", "forward"), ("value", "y"), ("value", "f")),
    Peephole(("linear", "backward"), ("gelu", "backward"), ("gradient", "x"), ("gradient", "y")),
    Peephole(("layernorm", "backward"), ("residual", "forward"), ("gradient", "x"), ("value", "f")),
)


def fuse(instructions: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """The instructions with every pair fused that can be, first come, first fused."""
    result: list[Instruction] = []
    for instruction in instructions:
        pair = _fused(result[-1], instruction) if result else None
        if pair:
            result[-1] = pair
        else:
            result.append(instruction)
    return tuple(result)


def _fused(first: Instruction, second: Instruction) -> Instruction | None:
    """One instruction for two, or None."""
    for peephole in PEEPHOLES:
        if (first.op, first.direction) == peephole.first and (second.op, second.direction) == peephole.second:
            address = first.kernel_address(peephole.kernel) if first.kernel_address else 0
            if address and _meets(first, second, peephole):
                return Instruction(
                    second.tick, f"{first.node}, {second.node}", f"{first.op}+{second.op}", first.direction,
                    first.outputs + second.outputs, address, first.row + second.row, tasks=first.tasks,
                )  # fmt: skip
    return None


def _meets(first: Instruction, second: Instruction, peephole: Peephole) -> bool:
    """Whether the second reads what the first makes, and writes over nothing else of the first's."""
    made, read = _argument(first, peephole.made), _argument(second, peephole.read)
    if (made.address, made.nbytes) != (read.address, read.nbytes):
        return False
    others = [argument for argument in first.arguments if argument is not made]
    written = [argument for argument in second.arguments if argument.written]
    return not any(one.overlaps(other) for one in written for other in others)


def _argument(instruction: Instruction, port: Port) -> Argument:
    return next(each for each in instruction.arguments if (each.role, each.port) == port)
