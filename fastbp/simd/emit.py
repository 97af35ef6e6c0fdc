"""Pieces of LLVM IR that the product's intrinsics are put together from; pointers are to bytes."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from fastbp.simd.abi import I64
from fastbp.simd.target import vector_length

I32 = ir.IntType(32)
BYTES = ir.IntType(8).as_pointer()


def scalar_type(itemsize: int) -> Any:
    return ir.FloatType() if itemsize == 4 else ir.DoubleType()


def vector_type(itemsize: int) -> Any:
    return ir.VectorType(scalar_type(itemsize), vector_length(itemsize))


def number(value: int) -> Any:
    return ir.Constant(I64, value)


def load(builder: Any, pointer: Any, kind: Any, align: int) -> Any:
    """A value of type `kind`; vectors need no more alignment than an element."""
    value = builder.load(builder.bitcast(pointer, kind.as_pointer()))
    value.align = align
    return value


def store(builder: Any, value: Any, pointer: Any, align: int) -> None:
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer())).align = align


def broadcast(builder: Any, value: Any, length: int) -> Any:
    """A vector of `length` copies of a scalar."""
    kind = ir.VectorType(value.type, length)
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, length), [0] * length))


def prefetch(builder: Any, pointer: Any, write: bool = False, locality: int = 3) -> None:
    """Fetches a line, into every cache where `locality` is 3, from the second level outwards where it is 2."""
    kind = ir.FunctionType(ir.VoidType(), [BYTES, I32, I32, I32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [BYTES], kind)
    builder.call(function, [pointer, *(ir.Constant(I32, flag) for flag in (int(write), locality, 1))])


def hidden(builder: Any, value: Any) -> Any:
    """The same value, of unknown origin to LLVM: which keeps it in a register rather than working it out again, and
    neither derives pointers from it before a loop nor unrolls a loop by it."""
    return builder.asm(ir.FunctionType(value.type, [value.type]), "", "=r,0", [value], side_effect=False)


class Loop:
    """A loop under construction: variables that start from a value and get a new one at its end."""

    def __init__(self, builder: Any, name: str, starts: list[Any]) -> None:
        self.builder, before = builder, builder.block
        self.body = builder.append_basic_block(name)
        builder.branch(self.body)
        builder.position_at_end(self.body)
        self.variables = [builder.phi(start.type) for start in starts]
        for variable, start in zip(self.variables, starts, strict=True):
            variable.add_incoming(start, before)

    def close(self, again: Any, values: list[Any]) -> None:
        """Ends the body; code goes on behind it."""
        for variable, value in zip(self.variables, values, strict=True):
            variable.add_incoming(value, self.builder.block)
        done = self.builder.append_basic_block("done")
        self.builder.cbranch(again, self.body, done)
        self.builder.position_at_end(done)
