"""A program is a table that the loop can read, or a list of NumPy calls."""

from __future__ import annotations

import ctypes

from fastbp.run.instruction import Instruction
from fastbp.run.program import Program

KERNEL = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64, ctypes.c_int64)


def instruction(node: str, address: int = 0, row: tuple[int, ...] = ()) -> Instruction:
    return Instruction(0, node, "gelu", "forward", (), address, row)


def test_rows_are_padded_with_zeros_to_the_widest() -> None:
    seen: list[list[int]] = []
    kernel = KERNEL(lambda args, worker, workers: seen.append(args[:4]))
    address = ctypes.cast(kernel, ctypes.c_void_p).value
    assert address
    program = Program(
        (instruction("a", address, (7,)), instruction("b", address, (1, 2, 3, 4)), instruction("c", address))
    )
    assert program.compiled is not None
    assert program.compiled.count == 3
    program.compiled.run_alone(0, 3, 1)
    assert seen == [[7, 0, 0, 0], [1, 2, 3, 4], [0, 0, 0, 0]]


def test_the_table_is_made_once() -> None:
    program = Program((instruction("a", 1, (7,)),))
    assert program.compiled is program.compiled


def test_numpy_calls_have_no_table() -> None:
    assert Program((Instruction(0, "a", "gelu", "forward", (), call=lambda: None),)).compiled is None


def test_programs_follow_each_other() -> None:
    one, other = Program((instruction("a"), instruction("b"))), Program((instruction("c"),))
    assert [each.node for each in one.then(other).instructions] == ["a", "b", "c"]
    assert [each.node for each in one.instructions] == ["a", "b"]


def test_nothing_to_do_is_a_program_too() -> None:
    program = Program(())
    assert program.compiled is not None
    assert program.compiled.count == 0
    assert program.then(program).instructions == ()
